"""Whole training runs as the arms of a benchmark: a process started, its log read, a steady speed out of it."""

from __future__ import annotations

import csv
import re
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from re import Pattern

from common import ROOT

from trainer.errors import RunError

TRAIN = ROOT / "train.py"

# Named groups: `rate` (images a second) or `seconds` (a step), and where a log has them `step` and `steps`.
OURS = re.compile(r"Epoch: \[\d+\]\[\s*(?P<step>\d+)/(?P<steps>\d+)\]\tTime .*?\tSpeed\s+(?P<rate>[\d.]+)")
EXAMPLES = re.compile(r"Epoch: \[\d+\]\[\s*(?P<step>\d+)/(?P<steps>\d+)\]\s+Time\s+(?P<seconds>[\d.]+)")
TIMM = re.compile(r"Train: \d+ \[\s*\d+/\d+ .*?Time:\s+[\d.]+s,\s+(?P<rate>[\d.]+)/s")


@dataclass(frozen=True)
class Speed:
    """Images a second of the steps after the warm-up of one run: the median step, and the mean over their time."""

    median: float
    mean: float
    steps: int


def run_process(command: Sequence[str], env: Mapping[str, str], folder: Path) -> str:
    """Run a command in ``folder`` to its end; what it wrote, both streams. Raises RunError where it fails."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except OSError as error:
        raise RunError(f"cannot start {command[0]}: {error.strerror or error}") from error
    if done.returncode:
        last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "it wrote nothing")
        raise RunError(f"{' '.join(command)} ended with exit code {done.returncode}: {last.strip()}")
    return done.stdout


def train_command(*flags: object) -> list[str]:
    """A run of our own script with these flags."""
    return [sys.executable, str(TRAIN), *map(str, flags)]


def read_speed(log: str, pattern: Pattern[str], batch_size: int, warmup_steps: int) -> Speed:
    """The steady speed a log tells; needs a line a step. Raises RunError where too few lines match.

    The last step is left out where the log gives seconds: its batch may be smaller, and the line does not say so.
    """
    rates = []
    for match in pattern.finditer(log):
        found = match.groupdict()
        if found.get("rate"):
            rates.append(float(found["rate"]))
        elif not (found.get("step") and found.get("step") == found.get("steps")):
            rates.append(batch_size / max(float(found["seconds"]), 1e-9))
    steady = rates[warmup_steps:]
    if not steady or min(steady) <= 0:
        last = next((line for line in reversed(log.splitlines()) if line.strip()), "nothing")
        whose = "our" if pattern is OURS else "the peer's"
        hint = "" if pattern is OURS else ", or another --peer-regex"
        raise RunError(
            f"{whose} log holds {len(rates)} step lines and {warmup_steps} warm-up steps are left out: use more images "
            f"or fewer --warmup-steps{hint} (its last line: {last.strip()[:200]})"
        )
    return Speed(statistics.median(steady), statistics.harmonic_mean(steady), len(steady))


def read_summary(folder: Path) -> dict[str, float]:
    """Numbers of the last epoch in a run folder's summary.csv. Raises RunError where there is none."""
    try:
        with open(folder / "summary.csv", newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
        return {key: float(value) for key, value in rows[-1].items() if value}
    except (OSError, IndexError, ValueError) as error:
        raise RunError(f"{folder / 'summary.csv'} holds no epoch: the run ended early") from error

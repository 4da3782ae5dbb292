"""What every way to measure shares: the record on disk, the order of turns, the time it may take, failures."""

from __future__ import annotations

import json
import math
import shlex
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ab.arms import Arm
from ab.live import LiveTable, say
from ab.process import last_lines
from ab.settings import Settings
from ab.verdict import done_by_arm, round_of
from trainer.errors import EXIT_ERROR, RunError, UserError
from trainer.run_folder import write_atomically

FILE = "comparison.json"


class Measuring:
    """``content`` is comparison.json: settings, arms, probes and every run with all its step times."""

    def __init__(self, folder: Path, content: dict[str, Any]) -> None:
        self.folder = folder
        self.content = content
        self.settings: dict[str, Any] = content["settings"]
        self.arms = [Arm(arm["name"], tuple(arm["flags"]), tuple(arm["named"])) for arm in content["arms"]]
        self.at_work = ""  # the arm
        self.log: str | None = None  # where the arm at work writes, if not here
        self.table = LiveTable([arm.name for arm in self.arms], self.settings["rounds"])

    def run(self) -> int:
        """Everything not done yet; returns the exit code. Whatever it raises is for ``broke``, but for a
        UserError before the first run has ended."""
        raise NotImplementedError

    def save(self, state: str | None = None) -> None:
        self.content["state"] = state or self.content["state"]
        write_atomically(self.folder / FILE, json.dumps(plain(self.content), indent=1) + "\n")

    def has(self, arm: Arm, index: int) -> bool:
        """Whether round ``index`` (from 0) of an arm was measured already."""
        return index in done_by_arm(self.content)[arm.name]

    def check_time(self, expected: float) -> None:
        """Say what is ahead, in seconds; raises UserError where nothing is measured yet and it would take too long."""
        say(f"expected: {duration(expected)} for {self.settings['rounds']} rounds of {len(self.arms)} arms")
        if expected > 60 * self.settings["max_minutes"] and not self.content["runs"]:
            raise UserError(self.too_long(expected))

    def too_long(self, expected: float) -> str:
        """A sentence that ends in a command that fits."""
        limit, rounds = self.settings["max_minutes"], self.settings["rounds"]
        fitting = int(rounds * 60 * limit / expected)
        # Two rounds have an interval that says next to nothing.
        change = f"--rounds {fitting}" if fitting >= 3 else f"--max-minutes {math.ceil(1.1 * expected / 60)}"
        command = shlex.join(
            [*_drop(self.content["command"], change.split()[0]), *change.split(), "--", *self.content["given"]]
        )
        return (
            f"this would take about {duration(expected)}, above --max-minutes {limit:g}: "
            f"python scripts/compare.py {command}"
        )

    def failed(self, arm: str, exit_code: int, lines: Sequence[str], source: str) -> int:
        """Record and show how an arm ended; returns the comparison's exit code."""
        self.content["failure"] = {"arm": arm, "exit_code": exit_code, "last_lines": list(lines)}
        self.save("failed")
        self.table.end()
        say(f"arm {arm} ended with exit code {exit_code}; its last lines ({source}):")
        for line in lines:
            say(f"    {line}")
        return EXIT_ERROR

    def broke(self, error: Exception) -> int:
        """``failed`` for an error raised while ``at_work`` was; the error comes last, after what the arm wrote."""
        lines = [" ".join(f"{type(error).__name__}: {error}".split())]
        if not isinstance(error, RunError):
            lines = [line for part in traceback.format_exception(error) for line in part.splitlines()][-12:]
        written = last_lines(self.log) if self.log else []
        # No flag the user typed is at fault once runs have ended.
        code = EXIT_ERROR if isinstance(error, UserError) else getattr(error, "exit_code", EXIT_ERROR)
        return self.failed(self.at_work, code, [*written, *lines], self.log or "in this process")

    def tell(self, index: int, left: float, running: str | None = None) -> None:
        """The table's row of a round, as far as it is measured; ``left``: seconds to the end."""
        done = done_by_arm(self.content)
        rates = {arm.name: round_of(done[arm.name][index]).rate for arm in self.arms if self.has(arm, index)}
        self.table.row(index, rates, duration(left) if left > 0 else "", running)


def order(arms: Sequence[Arm], index: int) -> list[Arm]:
    """Who goes first in turn ``index`` (from 0): AB BA BA AB for two; more take turns, every other turn backwards."""
    shift = (index // 2) % len(arms)
    turned = [*arms[shift:], *arms[:shift]]
    return turned[::-1] if index % 2 else turned


def new_content(
    settings: Settings, arms: Sequence[Arm], command: Sequence[str], given: Sequence[str]
) -> dict[str, Any]:
    """An empty comparison.json. ``command``: our words as typed, ``given``: those after ``--``."""
    keys = ("rounds", "steps", "timing_warmup_steps", "seconds_per_run", "max_minutes", "epochs", "nproc_per_node",
            "in_process", "mode")  # fmt: skip
    return {
        "version": 1,
        "state": "running",
        "title": settings.title,
        "command": list(command),
        "given": list(given),
        "common": settings.common,
        "settings": {key: getattr(settings, key) for key in keys},
        "arms": [{"name": arm.name, "flags": list(arm.flags), "named": list(arm.named)} for arm in arms],
        "environment": None,
        "probes": {},
        "runs": [],
        "verdicts": [],
    }


def plain(value: Any) -> Any:
    """For JSON, which knows neither NaN nor infinity."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _drop(words: Sequence[str], flag: str) -> list[str]:
    """``words`` without ``flag`` and its value."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == flag:
            skip = True
        elif not word.startswith(f"{flag}="):
            kept.append(word)
    return kept


def duration(seconds: float) -> str:
    """``2m03s``; torch comes in with the module that knows, so not for --help."""
    from trainer.progress import duration as written

    return written(seconds)

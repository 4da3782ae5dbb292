"""Probe, budget, then rounds in alternating order; what is measured is on disk after every run."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ab.arms import Arm, check_resolved
from ab.process import Start, last_lines, median_step, run_once
from ab.settings import Settings
from ab.verdict import done_by_arm, round_of
from trainer.errors import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, EXIT_USER, UserError
from trainer.run_folder import write_atomically

FILE = "comparison.json"
PROBE_STEPS = 3


class Runner:
    """``content`` is comparison.json: settings, arms, probes and every run with all its step times."""

    def __init__(self, folder: Path, content: dict[str, Any], start: Start) -> None:
        self.folder = folder
        self.content = content
        self.settings: dict[str, Any] = content["settings"]
        self.arms = [Arm(arm["name"], tuple(arm["flags"]), tuple(arm["named"])) for arm in content["arms"]]
        self._start = start

    def run(self) -> int:
        """Everything not done yet; returns 0, 1 (a run failed), 2 (its flags were wrong) or 130. Raises UserError
        before the first round where all of it would take too long or the arms differ in more than they name."""
        code = self._probe()
        if code != EXIT_OK:
            return code
        expected = self._expected_seconds()
        _say(f"expected: {duration(expected)} for {self.settings['rounds']} rounds of {len(self.arms)} arms")
        if expected > 60 * self.settings["max_minutes"] and not self.content["runs"]:
            raise UserError(self._too_long(expected))
        return self._rounds(expected)

    def save(self, state: str | None = None) -> None:
        self.content["state"] = state or self.content["state"]
        write_atomically(self.folder / FILE, json.dumps(plain(self.content), indent=1) + "\n")

    def _probe(self) -> int:
        """One short run of each arm, thrown away but for what it tells: time, settings, heap."""
        probes = self.content["probes"]
        for arm in self.arms:
            if arm.name in probes:
                continue
            _say(f"probe: {arm.name}")
            flags = self._flags(arm, PROBE_STEPS, 1, epochs=None)
            run = run_once(self._start, flags, self.folder / "probes" / arm.name)
            if run["exit_code"] != EXIT_OK:
                code = self._failed(arm, run)
                return EXIT_USER if run["exit_code"] == EXIT_USER else code
            probes[arm.name] = {"wall_s": run["wall_s"], "step_s": median_step(run), "resolved": run["resolved"]}
            self.content["environment"] = self.content["environment"] or run["environment"]
            self.save()
        check_resolved(self.arms, [probes[arm.name]["resolved"] for arm in self.arms], ignored=("cpu_heap",))
        self._fix_heap()
        self._bound_steps()
        self.save()
        return EXIT_OK

    def _fix_heap(self) -> None:
        """The same heap for all arms: auto decides by the memory free at each start."""
        if any("cpu_heap" in arm.named or "device" in arm.named for arm in self.arms):
            return
        choices = {self.content["probes"][arm.name]["resolved"]["cpu_heap"] for arm in self.arms}
        self.content["cpu_heap"] = choices.pop() if len(choices) == 1 else "default"

    def _bound_steps(self) -> None:
        bound = self.settings["seconds_per_run"]
        if bound:
            slowest = max(probe["step_s"] for probe in self.content["probes"].values())
            fitting = int(bound / slowest) - self.settings["timing_warmup_steps"]
            self.settings["steps"] = max(3, min(self.settings["steps"], fitting))

    def _flags(self, arm: Arm, steps: int, warmup: int, epochs: int | None) -> list[str]:
        """What train.py gets. It stops inside the epoch, so that no validation is run, unless whole epochs are asked for."""
        heap = self.content.get("cpu_heap")
        length = ["--epochs", str(epochs)] if epochs else ["--stop-after-steps", str(steps + warmup)]
        return [
            *self.content["common"],
            *(["--cpu-heap", heap] if heap else []),
            *arm.flags,
            *length,
            *("--timing-warmup-steps", str(warmup), "--step-times", "true"),
        ]

    def _expected_seconds(self) -> float:
        """Wall time of what is left, from the probes; whole epochs count what their steps take."""
        total, done = 0.0, done_by_arm(self.content)
        for arm in self.arms:
            probe = self.content["probes"][arm.name]
            left = self.settings["rounds"] - len(done[arm.name])
            total += left * (probe["wall_s"] + self._more_steps(probe) * probe["step_s"])
        return total

    def _more_steps(self, probe: dict[str, Any]) -> float:
        if self.settings["epochs"] is None:
            return max(0, self.settings["steps"] + self.settings["timing_warmup_steps"] - PROBE_STEPS - 1)
        resolved = probe["resolved"]
        steps = resolved["steps_per_epoch"] or resolved["synthetic_size"] / resolved["batch_size"]
        return 1.2 * self.settings["epochs"] * steps  # a fifth for validation

    def _too_long(self, expected: float) -> str:
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

    def _rounds(self, expected: float) -> int:
        began, planned = time.perf_counter(), expected
        _say(self._row("round", [arm.name for arm in self.arms], "ratio to the first", "left"))
        for index in range(self.settings["rounds"]):
            for arm in order(self.arms, index):
                if index in done_by_arm(self.content)[arm.name]:
                    continue
                code = self._one(arm, index)
                if code != EXIT_OK:
                    return code
            passed, left = time.perf_counter() - began, self._expected_seconds()
            # The probes' guess, corrected by how it has held so far.
            left *= passed / max(planned - left, 1e-9) if planned > left else 1.0
            self._tell(index, left)
        return EXIT_OK

    def _one(self, arm: Arm, index: int) -> int:
        settings = self.settings
        flags = self._flags(arm, settings["steps"], settings["timing_warmup_steps"], settings["epochs"])
        run = run_once(self._start, flags, self.folder / "runs" / arm.name / f"round-{index + 1}")
        if run["exit_code"] != EXIT_OK:
            return self._failed(arm, run)
        median_step(run)  # raises where nothing was timed
        runs = self.content["runs"]
        runs.append({"arm": arm.name, "round": index, **run})
        self.save()
        first = next(one for one in runs if one["arm"] == self.arms[0].name) if runs[0] is not runs[-1] else run
        if arm is not self.arms[0] and first["arm"] == self.arms[0].name:
            check_resolved([self.arms[0], arm], [first["resolved"], run["resolved"]])
        return EXIT_OK

    def _failed(self, arm: Arm, run: dict[str, Any]) -> int:
        code = run["exit_code"]
        if code in (EXIT_INTERRUPTED, -2):
            self.save("interrupted")
            return EXIT_INTERRUPTED
        self.content["failure"] = {"arm": arm.name, "exit_code": code, "last_lines": last_lines(run["log"])}
        self.save("failed")
        _say(f"arm {arm.name} ended with exit code {code}; its last lines ({run['log']}):")
        for line in self.content["failure"]["last_lines"]:
            _say(f"    {line}")
        return EXIT_ERROR

    def _tell(self, index: int, left: float) -> None:
        done = done_by_arm(self.content)
        rates = [round_of(done[arm.name][index]).rate for arm in self.arms]
        ratios = " ".join(f"{rate / rates[0]:.3f}" for rate in rates[1:])
        last = index + 1 == self.settings["rounds"]
        label = f"{index + 1}/{self.settings['rounds']}"
        _say(self._row(label, [f"{rate:.2f} img/s" for rate in rates], ratios, "" if last else duration(left)))

    def _row(self, label: str, cells: Sequence[str], ratios: str, left: str) -> str:
        widths = [max(14, len(arm.name)) for arm in self.arms]
        columns = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return f"{label:>7}  {columns}  {ratios:>18}  {left:>8}".rstrip()


def order(arms: Sequence[Arm], index: int) -> list[Arm]:
    """Who goes first in round ``index`` (from 0): AB BA BA AB for two; more take turns, every other round backwards."""
    shift = (index // 2) % len(arms)
    turned = [*arms[shift:], *arms[:shift]]
    return turned[::-1] if index % 2 else turned


def new_content(
    settings: Settings, arms: Sequence[Arm], command: Sequence[str], given: Sequence[str]
) -> dict[str, Any]:
    """An empty comparison.json. ``command``: our words as typed, ``given``: those after ``--``."""
    keys = ("rounds", "steps", "timing_warmup_steps", "seconds_per_run", "max_minutes", "epochs", "nproc_per_node")
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


def _say(line: str) -> None:
    print(line, flush=True)

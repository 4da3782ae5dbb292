"""Probe, budget, then rounds of fresh processes in alternating order; what is measured is on disk after every run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ab.arms import Arm, check_resolved
from ab.live import say
from ab.measuring import Measuring, order
from ab.process import Start, last_lines, log_of, median_step, run_once
from ab.tally import few_steps
from ab.verdict import done_by_arm
from trainer.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_USER, UserError

PROBE_STEPS = 3
# What two rounds of one comparison have to have in common.
_MACHINE = ("cpu", "gpu", "cores", "torch")


class Runner(Measuring):
    """Every run is a process of its own."""

    def __init__(self, folder: Path, content: dict[str, Any], start: Start) -> None:
        super().__init__(folder, content)
        self._start = start

    def run(self) -> int:
        """Everything not done yet; returns 0, 1 (a run failed), 2 (its flags were wrong) or 130. Raises UserError
        before the first round where all of it would take too long or the arms differ in more than they name."""
        code = self._probe()
        if code != EXIT_OK:
            return code
        expected = self._expected_seconds()
        self.check_time(expected)
        return self._rounds(expected)

    def _probe(self) -> int:
        """One short run of each arm, thrown away but for what it tells: time, settings, heap."""
        probes = self.content["probes"]
        for arm in self.arms:
            if arm.name in probes:
                continue
            say(f"probe: {arm.name}")
            flags = self._flags(arm, PROBE_STEPS, 1, epochs=None)
            run = self._run(arm, flags, self.folder / "probes" / arm.name)
            if run["exit_code"] != EXIT_OK:
                code = self._ended_badly(arm, run)
                return EXIT_USER if run["exit_code"] == EXIT_USER else code
            probes[arm.name] = {
                "wall_s": run["wall_s"],
                "step_s": median_step(run),
                "epoch_steps": run["epochs"][0]["planned_steps"],
                "resolved": run["resolved"],
            }
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
        if bound is not None:
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
        """Steps of a run beyond those of its probe."""
        if self.settings["epochs"] is None:
            return max(0, self.settings["steps"] + self.settings["timing_warmup_steps"] - PROBE_STEPS - 1)
        return 1.2 * self.settings["epochs"] * probe["epoch_steps"]  # a fifth for validation

    def _rounds(self, expected: float) -> int:
        began, left = time.perf_counter(), expected
        self.table.header()
        for index in range(self.settings["rounds"]):
            for arm in order(self.arms, index):
                if self.has(arm, index):
                    continue
                self.tell(index, left, running=arm.name)
                code = self._one(arm, index)
                if code != EXIT_OK:
                    return code
                passed, left = time.perf_counter() - began, self._expected_seconds()
                # The probes' guess, corrected by how it has held so far.
                left *= passed / max(expected - left, 1e-9) if expected > left else 1.0
            self.tell(index, left)
        return EXIT_OK

    def _one(self, arm: Arm, index: int) -> int:
        settings = self.settings
        flags = self._flags(arm, settings["steps"], settings["timing_warmup_steps"], settings["epochs"])
        run = self._run(arm, flags, self.folder / "runs" / arm.name / f"round-{index + 1}")
        if run["exit_code"] != EXIT_OK:
            return self._ended_badly(arm, run)
        median_step(run)  # raises where nothing was timed
        done = done_by_arm(self.content)
        first, own = (next(iter(done[name].values()), run) for name in (self.arms[0].name, arm.name))
        check_resolved([self.arms[0], arm], [first["resolved"], run["resolved"]])
        check_machine(own, run, self.folder)
        self.content["runs"].append({"arm": arm.name, "round": index, **run})
        note = few_steps(self.content)
        if note and run is first:
            say(f"note: {note}")
        self.save()
        return EXIT_OK

    def _run(self, arm: Arm, flags: Sequence[str], folder: Path) -> dict[str, Any]:
        self.at_work, self.log = arm.name, str(log_of(folder))
        return run_once(self._start, flags, folder)

    def _ended_badly(self, arm: Arm, run: dict[str, Any]) -> int:
        code = run["exit_code"]
        if code in (EXIT_INTERRUPTED, -2):
            self.save("interrupted")
            self.table.end()
            return EXIT_INTERRUPTED
        return self.failed(arm.name, code, last_lines(run["log"]), run["log"])


def check_machine(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """Raise UserError where a run of the same arm was measured elsewhere."""
    for key in _MACHINE:
        then, here = (run["environment"].get(key) for run in (before, now))
        if then != here:
            raise UserError(
                f"{folder} was measured with {key} {then}, this machine has {here}: go on there, or begin a comparison here with "
                "another --output-dir"
            )

"""All arms in one process, in alternating steps on the same batches: a quick look, where start-up would dominate.

A round is a block of steps, in each of which every arm takes its turn; warm-up steps before the first round are left
out. The arms start from the same weights and random numbers, and each has its own of the latter. What they share, the
process's heap and caches above all, is what separates this from a run of its own for each.
"""

from __future__ import annotations

import statistics

from ab.arms import IN_PROCESS, check_resolved, differences
from ab.in_process import ArmInProcess, SharedSteps, build_arms
from ab.live import say
from ab.measuring import Measuring, order
from ab.process import steady
from ab.results import COMPARED
from trainer.checks import flag_of
from trainer.errors import EXIT_OK, UserError

LABEL = "a quick look: all arms in one process, in alternating steps; the loader is in no time"


class Together(Measuring):
    """The arms of ``content``, measured in this very process."""

    def run(self) -> int:
        """As ``Runner.run``: the rounds not done yet; raises where an arm fails."""
        say(f"in process: {LABEL}")
        self.at_work = self.arms[0].name
        steps, arms, self.content["environment"] = build_arms(self.content)
        self._check(arms)
        with steps:
            self._measure(arms, steps)
        return EXIT_OK

    def _check(self, arms: list[ArmInProcess]) -> None:
        resolved = [arm.resolved for arm in arms]
        check_resolved(self.arms, resolved)
        for arm, config in zip(self.arms, resolved, strict=True):
            shared = [key for key in differences(resolved[0], config) if key not in IN_PROCESS]
            if shared:
                raise UserError(
                    f"arms {self.arms[0].name} and {arm.name} differ in {', '.join(map(flag_of, shared))}, which is one for "
                    "a whole process: drop --in-process, or set it for all arms after --"
                )
        if all(config["device"] == "cpu" for config in resolved):
            self.content["cpu_heap"] = resolved[0]["cpu_heap"]

    def _measure(self, arms: list[ArmInProcess], steps: SharedSteps) -> None:
        settings, turn = self.settings, 0
        for _ in range(max(1, settings["timing_warmup_steps"])):
            self._turn(arms, steps, turn)
            turn += 1
        for arm in arms:
            times = self._take(arm)
            self.content["probes"][arm.name] = {
                "wall_s": sum(times["seconds"]), "step_s": times["seconds"][-1], "resolved": arm.resolved,
            }  # fmt: skip
        self._bound_steps()
        self.check_time(self._left())
        self.save()
        self.table.header()
        for index in range(settings["rounds"]):
            if all(self.has(arm, index) for arm in self.arms):
                continue
            self.tell(index, self._left(), running=self.arms[0].name)
            for _ in range(settings["steps"]):
                self._turn(arms, steps, turn)
                turn += 1
            self._keep(arms, index)
            self.tell(index, self._left())

    def _turn(self, arms: list[ArmInProcess], steps: SharedSteps, turn: int) -> None:
        """One step of every arm on the same batches."""
        step = next(steps)
        by_name = {arm.name: arm for arm in arms}
        for arm in order(self.arms, turn):
            self.at_work = arm.name
            by_name[arm.name].step(turn, step)

    def _take(self, arm: ArmInProcess) -> dict[str, list[float]]:
        self.at_work = arm.name
        return arm.take()

    def _keep(self, arms: list[ArmInProcess], index: int) -> None:
        runs = self.content["runs"]
        for arm in arms:
            times = self._take(arm)
            run = {
                "arm": arm.name,
                "round": index,
                "exit_code": EXIT_OK,
                "epochs": [{"epoch": 0, "warmup_steps": 0, **times}],
                # The weights' first steps: those of the warm-up, so they stand in one round alone.
                "losses": arm.first_losses(COMPARED) if index == 0 else [],
                "ordered_dropout": arm.ordered_dropout,
                "skipped_steps": arm.skipped_steps,
                "peak_memory_gib": arm.peak_memory_gib(),
                "final": None,
                "resolved": arm.resolved,
            }
            steady(run)
            runs.append(run)
        self.save()

    def _bound_steps(self) -> None:
        bound = self.settings["seconds_per_run"]
        if bound is not None:
            fitting = int(bound / self._slowest())
            self.settings["steps"] = max(2, min(self.settings["steps"], fitting))

    def _slowest(self) -> float:
        return max(1e-9, max(probe["step_s"] for probe in self.content["probes"].values()))

    def _left(self) -> float:
        """Seconds that the rounds not done yet will take, by the median step so far, or the last of the warm-up."""
        left = sum(not all(self.has(arm, index) for arm in self.arms) for index in range(self.settings["rounds"]))
        seconds = 0.0
        for arm in self.arms:
            done = [run for run in self.content["runs"] if run["arm"] == arm.name]
            step = self.content["probes"][arm.name]["step_s"]
            seconds += statistics.median(steady(done[-1])["seconds"]) if done else step
        return left * self.settings["steps"] * seconds

"""One round of a drill: a run from its first start to its end, and what must be true of it then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from drill_process import Start

from trainer.checkpoint import damage_of
from trainer.checkpoint_folder import newest_whole
from trainer.run_folder import read_json

Fed = list[tuple[int, list[str]]]


@dataclass
class Outcome:
    """Of all rounds. ``kills``: by what the run was about; ``seconds``: from a signal to its checkpoint."""

    kills: dict[str, int] = field(default_factory=dict)
    rounds: int = 0
    starts: int = 0
    steps_redone: int = 0
    bytes_lost: int = 0
    seconds: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def count(self, moment: str) -> None:
        self.kills[moment] = self.kills.get(moment, 0) + 1


class Round:
    """One run from its first start to its end, in a folder of its own."""

    def __init__(self, folder: Path, ranks: int, flags: Sequence[str], outcome: Outcome) -> None:
        self.folder = folder
        self._ranks = ranks
        self._flags = flags
        self._outcome = outcome
        self._number = 0
        self._step = 0  # of the newest checkpoint
        self.history: Fed = []
        folder.mkdir(parents=True)

    def start(self) -> Start:
        """The command, typed (again)."""
        redone = len(self.history) - self._step
        if redone < 0:
            self._outcome.faults.append(f"{self.folder.name}: step {self._step} is saved, but fewer were trained")
        self._outcome.steps_redone += max(0, redone)
        del self.history[self._step :]
        self._number += 1
        self._outcome.starts += 1
        return Start(self.folder, self._number, self._ranks, self._flags)

    def ended(self, start: Start) -> None:
        """Look at what a start left behind."""
        self.history += start.fed()
        for path in self.folder.glob("runs/*/checkpoints/*.pt"):
            if damage_of(path):
                self._outcome.bytes_lost += path.stat().st_size
        step = (self.end() or {}).get("step", 0)
        if step < self._step:
            self._outcome.faults.append(f"{self.folder.name}: step {self._step} was saved, now the newest is {step}")
        self._step = step

    def end(self) -> dict[str, Any] | None:
        """Content of the newest whole checkpoint."""
        contents = [newest_whole(run / "checkpoints")[1] for run in self.folder.glob("runs/*")]
        return max((content for content in contents if content), key=lambda content: content["step"], default=None)

    def done(self) -> bool:
        """Whether the run says that it is through: its command, typed again, begins a new one."""
        return any(read_json(path).get("state") == "done" for path in self.folder.glob("runs/*/status.json"))

    def saving(self) -> bool:
        return any(self.folder.glob("runs/*/checkpoints/.*.tmp"))

    def faults(self, calm: Round) -> list[str]:
        """How this round, now done, differs from an undisturbed one."""
        found = []
        one, two = self.end(), calm.end()
        if one is None or two is None or not same(one, two):
            found.append("the final weights or optimizer state differ")
        # A start that was killed before its first save leaves a folder in which there is nothing to go on with.
        if len({path.parent.parent for path in self.folder.glob("runs/*/checkpoints/*.pt")}) != 1:
            found.append("checkpoints lie in more than one run folder")
        found += image_faults(self.history, calm.history)
        return [f"{self.folder.name}: {fault}" for fault in found]


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Whether weights and optimizer state are bitwise equal."""
    return all(one[key] == two[key] for key in ("step", "epoch")) and all(
        _same_values(one[key], two[key]) for key in ("state_dict", "optimizer")
    )


def _same_values(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(_same_values(one[key], two[key]) for key in one)
    if isinstance(one, torch.Tensor):
        # Bytes, not values: -0.0 is not 0.0.
        return one.dtype == two.dtype and one.numpy().tobytes() == two.numpy().tobytes()
    return bool(one == two)


def image_faults(history: Fed, calm: Fed) -> list[str]:
    """What is wrong with the images of a history: each once an epoch, and those of each step the undisturbed run's."""
    found = []
    everything = {image for _, images in calm for image in images}
    for epoch in sorted({epoch for epoch, _ in (*history, *calm)}):
        seen = Counter(image for at, images in history if at == epoch for image in images)
        lost, repeated = len(everything - seen.keys()), sum(count - 1 for count in seen.values())
        if lost or repeated:
            found.append(f"epoch {epoch}: {lost} images lost, {repeated} repeated")
    if [(epoch, sorted(images)) for epoch, images in history] != [(epoch, sorted(images)) for epoch, images in calm]:
        found.append("the images of a step are not those of the undisturbed run")
    return found

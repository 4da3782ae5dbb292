"""Where a run is: what a checkpoint holds of it beside weights, optimizer and random state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass
class Progress:
    """Where a run is. ``step`` counts attempted updates, ``samples_in_epoch`` what the epoch has consumed.

    ``skipped_steps`` and ``bad_row`` count non-finite steps: of the run, and in a row up to here.
    ``rewinds`` counts how often the run went back, ``left_out`` holds first and last of the steps whose images it
    then passes over. ``epoch_sums`` are those of the epoch up to its last logged step, over all ranks; ``window_sums`` what this rank
    has added since then.
    """

    epoch: int = 0
    step: int = 0
    images_seen: int = 0
    samples_in_epoch: int = 0
    best_acc1: float = 0.0
    best_epoch: int = -1
    skipped_steps: int = 0
    bad_row: int = 0
    rewinds: int = 0
    left_out: list[list[int]] = field(default_factory=list)
    epoch_sums: list[float] = field(default_factory=lambda: [0.0] * 4)
    window_sums: list[float] = field(default_factory=lambda: [0.0] * 4)

    def leaves_out(self, step: int) -> bool:
        return any(first <= step <= last for first, last in self.left_out)

    def take_score(self, acc1: float) -> bool:
        """Validation's accuracy of the present epoch; True where it is the best so far."""
        is_best = self.best_epoch < 0 or acc1 > self.best_acc1 or math.isnan(self.best_acc1)
        if is_best:
            self.best_acc1, self.best_epoch = acc1, self.epoch
        return is_best

    def epochs_without_better(self) -> int:
        """Epochs since the best one; 0 where none is known, or inside an epoch."""
        return 0 if self.samples_in_epoch or self.best_epoch < 0 else max(0, self.epoch - 1 - self.best_epoch)

    def start_epoch(self, epoch: int) -> None:
        """Stand before the first step of ``epoch``."""
        self.epoch, self.samples_in_epoch = epoch, 0
        self.epoch_sums, self.window_sums = [0.0] * 4, [0.0] * 4


class Saver(Protocol):
    """What the loop asks at the boundary of two steps.

    Every rank calls ``save`` and ``close`` alike. ``due_by_step`` is the same on every rank; ``due_by_clock`` is a
    matter of rank 0's clock, on which the ranks must agree before they save. ``check`` tells how the last save went. ``take_bad_steps``, on rank 0,
    waits for it; where it found non-finite weights, they are those of the steps returned, and nothing else tells of them.
    """

    def due_by_step(self, step: int) -> bool: ...
    def due_by_clock(self) -> bool: ...
    def check(self) -> None: ...
    def save(self, progress: Progress, is_best: bool) -> None: ...
    def take_bad_steps(self) -> Sequence[tuple[int, int]]: ...
    def close(self) -> None: ...

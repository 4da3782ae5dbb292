"""``--step-times``: how long each step of an epoch took and the losses of its first steps, for comparisons.

Nothing is read while the steps run: marks and losses stay where they are until the epoch's last step, where
the host has waited for the device anyway. Every line of ``step_times.jsonl`` is one epoch of one start.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.append_file import AppendFile
from trainer.distributed import Group
from trainer.dropout_order import drawing_modules, watch_dropout
from trainer.hardware import peak_memory_gib
from trainer.metrics import RunningSums, means_of
from trainer.timing import StepTimer

FILE = "step_times.jsonl"
LOSSES_KEPT = 100  # first steps of an epoch whose losses are kept: 32 bytes each on the device


class StepTimes:
    """Per-step figures of one epoch after another; does nothing unless ``enabled``, which all ranks agree on.

    ``folder``: the run folder on the rank that writes, None elsewhere. ``model``: whose modules that draw random numbers
    are named, those apart that draw in the order of memory; None: a compiled one, of which nothing is known.
    """

    def __init__(self, enabled: bool, folder: Path | None, group: Group, model: nn.Module | None = None) -> None:
        self.enabled = enabled
        watched = model if enabled else None
        self._ordered_dropout = [] if watched is None else watch_dropout(watched)
        self._drawing = [] if watched is None else drawing_modules(watched)
        self._file = AppendFile(folder / FILE) if folder is not None else None
        self._group = group
        self._timer: StepTimer | None = None
        # Windows of running sums; the first is what an epoch begins with, True says that a window holds one step alone.
        self._sums: list[tuple[Tensor, bool]] = []
        self._fresh = False

    def start(self, timer: StepTimer, sums: RunningSums) -> None:
        """A new epoch, timed by ``timer``, or the rest of one, of whose last window ``sums`` may hold a part."""
        self._timer, self._sums, self._fresh = timer, [], False
        if self.enabled:
            self._sums = [(sums.window(), False)]

    def add(self, sums: RunningSums, logged: bool) -> None:
        """After each step, before its sums are taken where it is ``logged``."""
        if self.enabled and len(self._sums) <= LOSSES_KEPT:
            self._sums.append((sums.window(), self._fresh))
            self._fresh = logged

    def write(self, epoch: int, skipped_steps: int) -> None:
        """The epoch's line, or that of as much of it as was run; call where the host has waited for the device."""
        if not self.enabled or self._timer is None:
            return
        timer, losses = self._timer, self._losses()
        self._timer = None
        if self._file is None:
            return
        record: dict[str, Any] = {
            "epoch": epoch,
            "clock": timer.clock_name,
            "warmup_steps": timer.warmup_steps,
            "planned_steps": timer.planned_steps,
            **timer.per_step(),
            "losses": losses,
            "ordered_dropout": self._ordered_dropout,
            "drawing_modules": self._drawing,
            "skipped_steps": skipped_steps,
            "peak_memory_gib": peak_memory_gib(self._group.device),
        }
        self._file.append(json.dumps(record) + "\n")

    def _losses(self) -> list[float | None]:
        """Mean loss of each of the first steps over all ranks; None where it is not finite or there were no images."""
        if not self._sums:
            return []
        rows = self._group.sum(torch.stack([window for window, _ in self._sums])).tolist()
        losses: list[float | None] = []
        before = rows[0]
        for row, (_, fresh) in zip(rows[1:], self._sums[1:], strict=True):
            own = row if fresh else [now - then for now, then in zip(row, before, strict=True)]
            loss = means_of(own).loss
            losses.append(loss if math.isfinite(loss) else None)
            before = row
        return losses

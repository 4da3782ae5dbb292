"""Our training loop as an arm of a benchmark: ready batches in, seconds out, all logging on."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.sampler import StepPlan, StepSampler
from trainer.distributed import Group
from trainer.engine import Engine, LoopOptions
from trainer.metrics import Means
from trainer.optim import LRSchedule
from trainer.profiling import StepProfiler
from trainer.report import Reporter
from trainer.run_log import Console, RunFiles
from trainer.run_state import Progress
from trainer.validation import Scores

Batch = tuple[Tensor, Tensor]
_NO_VALIDATION: Any = ()


def now(device: torch.device) -> float:
    """Seconds, once the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class ReadyBatches:
    """A training loader whose batches lie on the device already; notes when an epoch begins."""

    def __init__(self, batches: Sequence[Batch], steps: int, batch_size: int, device: torch.device) -> None:
        self.sampler = StepSampler(steps * batch_size, batch_size)
        self.started = 0.0
        self._batches = batches
        self._device = device

    @property
    def steps_in_epoch(self) -> int:
        return self.sampler.steps_in_epoch()

    def epoch(self, epoch: int, consumed: int = 0) -> tuple[Iterator[StepPlan], Iterator[Batch]]:
        self.sampler.start(epoch, consumed)
        self.started = now(self._device)
        return self.sampler.plans(), itertools.cycle(self._batches)


class TimedEngine(Engine):
    """Notes when the last step of an epoch is done, its logging included, in place of validating."""

    ended = 0.0

    def validate(self, val: Any) -> Scores:
        self.ended = now(self.group.device)
        return Scores(Means(0.0, 0.0, 0.0, 1))


class NoSaver:
    def due_by_step(self, step: int) -> bool:
        return False

    def due_by_clock(self) -> bool:
        return False

    def check(self) -> None:
        """Nothing can fail."""

    def take_bad_steps(self) -> Sequence[tuple[int, int]]:
        return ()

    def close(self) -> None:
        """Nothing is open."""

    def save(self, progress: Progress, is_best: bool) -> None:
        """Checkpoints are no part of a step."""


class OurLoop:
    """The engine of train.py with console, metrics.jsonl, summary.csv and TensorBoard, all into ``folder``."""

    def __init__(
        self, stepper: Any, group: Group, batches: ReadyBatches, options: LoopOptions, lr: float, folder: Path
    ) -> None:
        self._train = batches
        self._files = RunFiles(folder, tensorboard=True)
        self._console = open(folder / "console.log", "w", encoding="utf-8")  # noqa: SIM115
        self.engine = TimedEngine(
            stepper,
            LRSchedule(lr, options.epochs * batches.steps_in_epoch),
            group,
            options,
            Reporter(Console(True), self._files, group),
            NoSaver(),
            StepProfiler(None, None, group.device),
        )
        stepper.start(0)

    def run(self) -> float:
        """One epoch; the seconds its steps took."""
        with contextlib.redirect_stdout(self._console):
            self.engine.train_one_epoch(self._train, _NO_VALIDATION)
        return self.engine.ended - self._train.started

    def close(self) -> None:
        self._files.close()
        self._console.close()

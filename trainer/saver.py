"""Saves a run: when it is due, one after another, and what follows when a save fails."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.cadence import Cadence
from trainer.checkpoint_folder import CheckpointFolder
from trainer.checkpoint_writer import CheckpointWriter, Written
from trainer.content import rng_state, snapshot_content
from trainer.distributed import Group
from trainer.errors import NonFiniteError, RunError, os_reason
from trainer.host_copies import HostCopies
from trainer.report import Reporter
from trainer.run_state import Progress
from trainer.step import Stepper

FAILURES_IN_A_ROW = 3


@dataclass(frozen=True)
class SaveOptions:
    save_every_steps: int | None = None
    save_every_minutes: float = 15.0
    keep_checkpoints: int = 3
    async_save: bool = True
    on_save_error: str | None = None


class CheckpointSaver:
    """Saves from rank 0; every rank calls ``save`` and ``close``, since each has a generator to store.

    ``folder``: the run's, on rank 0; None elsewhere. ``facts``: what does not change during the run (arch, settings,
    classes), as plain types.
    """

    def __init__(
        self,
        folder: Path | None,
        group: Group,
        stepper: Stepper,
        facts: dict[str, Any],
        options: SaveOptions | None = None,
        report: Reporter | None = None,
    ) -> None:
        options = options or SaveOptions()
        self._group = group
        self._stepper = stepper
        self._facts = facts
        self._report = report
        self._background = options.async_save
        self._cadence = Cadence(options.save_every_steps, options.save_every_minutes)
        self._copies = HostCopies(group.device)
        self._writer = None
        if folder is not None:
            self._writer = CheckpointWriter(
                CheckpointFolder(folder / "checkpoints", options.keep_checkpoints), self._copies
            )
        self._parameters = frozenset(name for name, _ in stepper.model.named_parameters(remove_duplicate=False))
        self._allowed = {"stop": 1, None: FAILURES_IN_A_ROW}.get(options.on_save_error, math.inf)
        self._failures = 0  # in a row
        self._good_step: int | None = None
        self._end: RunError | None = None  # what the run is to end with

    def due_by_step(self, step: int) -> bool:
        """The same on every rank."""
        return self._cadence.due_by_step(step)

    def due_by_clock(self) -> bool:
        """By this rank's clock: ranks must agree on the answer of rank 0."""
        return self._cadence.due_by_clock()

    def check(self) -> None:
        """At every boundary: tell how the last save went, if it is over. Raises RunError where the run is to end;
        of several ranks all do, but not before the next ``save``."""
        self._collect(wait=False)
        if not self._group.active:
            self._raise_end()

    def save(self, progress: Progress, is_best: bool) -> None:
        """Copy the run's state to the host and have it written. Raises RunError, as ``check`` does."""
        started = time.perf_counter()
        self._collect(wait=True)
        self._cadence.saved()
        own = rng_state(self._group.device), progress.window_sums, self._end
        ranks = self._group.gather(own)
        self._end = None
        if ranks[0][2] is not None:
            raise ranks[0][2]
        if self._writer is None:
            return
        states = [(generators, window) for generators, window, _ in ranks]
        content = {**self._facts, **snapshot_content(self._stepper, progress, states, self._copies)}
        self._copies.copy()
        self._writer.start(content, is_best, self._parameters, time.perf_counter() - started)
        if not self._background:
            self._collect(wait=True)
            if not self._group.active:
                self._raise_end()

    def join(self) -> None:
        """Wait until nothing is being written, on this rank; raises nothing."""
        self._collect(wait=True)

    def take_bad_steps(self) -> Sequence[tuple[int, int]]:
        """The steps after which the save in flight finds non-finite weights: the run goes back, so that it ends with
        them no more."""
        self._collect(wait=True)
        end = self._end
        if not isinstance(end, NonFiniteError):
            return ()
        self._end = None
        return end.steps

    def close(self) -> None:
        """Every rank: wait for the last save, which must not fail: it is tried once more. Raises RunError."""
        self._group.on_main(self._finish)

    def _finish(self) -> None:
        self._collect(wait=True)
        if self._failures and self._writer is not None and self._end is None:
            self._writer.again()
            self._collect(wait=True)
            if self._failures and self._end is None:
                self._end = RunError(f"the last checkpoint could not be saved ({self._what_is_left()})")
        self._raise_end()

    def _raise_end(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            raise end

    def _collect(self, wait: bool) -> None:
        written = self._writer.collect(wait) if self._writer is not None else None
        if written is None:
            return
        if written.error is None:
            self._failures, self._good_step = 0, written.step
            if self._report is not None:
                self._report.saved(written, self._background)
        elif isinstance(written.error, NonFiniteError):
            self._end = written.error
        else:
            self._failed(written, written.error)

    def _failed(self, written: Written, error: Exception) -> None:
        self._failures += 1
        line = f"the checkpoint of step {written.step} could not be saved: {_reason(error)}"
        if self._failures >= self._allowed:
            row = f"{self._failures} saves in a row failed, the last one at step {written.step}: {_reason(error)}"
            self._end = RunError(f"{line if self._failures == 1 else row} ({self._what_is_left()})", on_every_rank=True)
        elif self._report is not None:
            self._report.console.notice(
                f"{line}; training goes on and the next save tries again ({self._what_is_left()})"
            )

    def _what_is_left(self) -> str:
        if self._good_step is None:
            return "this start has saved nothing yet; older checkpoints are as they were"
        return f"the checkpoint of step {self._good_step} is whole"


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return os_reason(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"

"""Writes checkpoints beside the training: one at a time, in a thread of its own."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.checkpoint_folder import CheckpointFolder
from trainer.errors import NonFiniteError
from trainer.host_copies import HostCopies, contiguous


@dataclass
class Written:
    """How a save went. ``paused``: seconds that the training waited; ``seconds``: those the writing took;
    ``error``: why nothing was written."""

    step: int
    epoch: int
    paused: float
    seconds: float = 0.0
    path: Path | None = None
    error: Exception | None = None


@dataclass(frozen=True)
class _Job:
    content: dict[str, Any]
    is_best: bool
    parameters: frozenset[str]


class CheckpointWriter:
    """``copies``: where the tensors of a content lie, which is why there is one save in flight and no more."""

    def __init__(self, folder: CheckpointFolder, copies: HostCopies) -> None:
        self._folder = folder
        self._copies = copies
        # A join that Ctrl-C interrupts spoils its thread in Python before 3.13; an event may be waited for again.
        self._over: threading.Event | None = None
        self._job: _Job | None = None
        self._written: Written | None = None

    def start(self, content: dict[str, Any], is_best: bool, parameters: frozenset[str], paused: float) -> None:
        """Write ``content``, once ``collect`` has told of the save before. ``parameters``: names of the tensors in
        its state dict that must be finite."""
        assert self._written is None, "the save before was not collected"
        self._job = _Job(content, is_best, parameters)
        self._written = Written(content["step"], content["epoch"], paused)
        self._over = threading.Event()
        # Not a daemon: a process that ends waits for it.
        threading.Thread(target=self._write, name="checkpoint", args=(self._job, self._written, self._over)).start()

    def again(self) -> None:
        """Write the same once more, here and now."""
        assert self._job is not None
        self._written = Written(self._job.content["step"], self._job.content["epoch"], 0.0)
        self._write(self._job, self._written, threading.Event())

    def collect(self, wait: bool) -> Written | None:
        """How the save in flight went, once; None where there is none, or where it is not over and ``wait`` is false."""
        if self._over is not None:
            if not wait and not self._over.is_set():
                return None
            self._over.wait()
            self._over = None
        written, self._written = self._written, None
        return written

    def _write(self, job: _Job, written: Written, over: threading.Event) -> None:
        started = time.perf_counter()
        try:
            self._copies.wait()
            _refuse_non_finite(job)
            written.path = self._folder.write(contiguous(job.content), job.is_best)
        except Exception as error:  # told at the next boundary, under the policy for it
            written.error = error
        written.seconds = time.perf_counter() - started
        over.set()


def _refuse_non_finite(job: _Job) -> None:
    """An update may have made weights infinite, which the guard sees one step later: no good file gives way to those."""
    for name, value in job.content["state_dict"].items():
        if name in job.parameters and isinstance(value, Tensor) and not bool(torch.isfinite(value).all()):
            step = job.content["step"]
            raise NonFiniteError(
                f"{name} holds non-finite weights after step {step - 1}: not saved; lower --lr or look at the data",
                on_every_rank=True,
                steps=[(step - 1, step - 1)],
            )

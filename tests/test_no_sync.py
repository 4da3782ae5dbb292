"""The host reads nothing from the device in a step that is not logged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.step import Stepper


class Reads(TorchDispatchMode):
    """Notes every operation that brings a value to the host: item(), tolist(), float(tensor), if tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_local_scalar_dense" in str(func) or "is_nonzero" in str(func):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def reads_of_each_step(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by a number for each training step from now on."""
    counts: list[int] = []
    step = Stepper.step

    def watched(self: Stepper, *args: Any) -> int:
        with Reads() as reads:
            taken = step(self, *args)
        counts.append(len(reads.seen))
        return taken

    monkeypatch.setattr(Stepper, "step", watched)
    return counts


def test_the_watch_sees_a_read():
    with Reads() as reads:
        torch.ones(2).sum().item()
        bool(torch.ones(()))
        torch.ones(2).tolist()
    assert len(reads.seen) >= 2


@pytest.mark.parametrize(
    "flags",
    [
        ["--opt-level", "O0"],
        ["--opt-level", "O0", "--clip-grad-norm", 1, "--grad-accum-steps", 2, "--micro-batch", 4],
        ["--opt-level", "O1", "--amp-dtype", "bfloat16"],
        ["--opt-level", "O2", "--amp-dtype", "float16", "--loss-scale", "dynamic"],
        ["--opt-level", "O2", "--amp-dtype", "float16", "--loss-scale", 128, "--clip-grad-norm", 1],
        ["--opt-level", "O0", "--mixup", 0.2, "--cutmix", 1],
        ["--tensorboard", "true"],
        ["--opt-level", "O3", "--amp-dtype", "bfloat16", "--model-ema", 0.99],
    ],
    ids=lambda flags: "-".join(map(str, flags[1::2])),
)
def test_no_value_is_read_in_steps_that_are_not_logged(run, monkeypatch, flags):
    counts = reads_of_each_step(monkeypatch)
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: waits.append(1))
    assert run(*flags, "--synthetic-size", 96, "--print-freq", 100, "--channels-last", "true") == 0
    assert len(counts) in (6, 12)
    assert counts == [0] * len(counts)
    assert waits == []

"""Loss and accuracy as running sums that stay on the device until they are read."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.distributed import Group


@dataclass(frozen=True)
class Means:
    """Mean loss and accuracies (percent) over ``images``; NaN where there are none."""

    loss: float
    acc1: float
    acc5: float
    images: int


class RunningSums:
    """Sums of loss, correct@1, correct@5 and images over batches, on the device; ``total`` on the host.

    ``window``: what was added and not yet taken when a run was saved.
    A non-finite loss stays in the sums: a mean that holds one is not a number, and says so.
    """

    def __init__(
        self, device: torch.device, total: list[float] | None = None, window: list[float] | None = None
    ) -> None:
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._window = torch.tensor(window or [0.0] * 4, dtype=dtype, device=device)
        self.total = list(total or [0.0] * 4)

    @torch.no_grad()
    def add(self, loss: Tensor, output: Tensor, target: Tensor) -> None:
        """``loss``: mean over the batch; ``output`` (N, classes); ``target`` (N,) class indices,
        or (N, classes) probabilities, whose largest counts as the answer."""
        images = target.shape[0]
        correct1, correct5 = correct_in_top(output, target.argmax(dim=1) if target.dim() == 2 else target)
        batch = torch.stack([loss.detach().float() * images, correct1, correct5, torch.full_like(correct1, images)])
        self._window += batch.to(self._window.dtype)

    def take(self, group: Group | None = None) -> list[float]:
        """What was added since the last call, over all ranks of ``group`` (this rank's without one), and
        into ``total`` with it; waits for the device."""
        window = (self._window if group is None else group.sum(self._window)).tolist()
        self._window.zero_()
        self.total = [then + now for then, now in zip(self.total, window, strict=True)]
        return window

    def window(self) -> Tensor:
        """A copy of what was added since the last ``take``, of this rank, left on the device."""
        return self._window.clone()

    def total_over(self, group: Group) -> list[float]:
        """Everything so far over all ranks, where ``take`` was called without a group."""
        self.take()
        return group.sum(self._window.new_tensor(self.total)).tolist()


def correct_in_top(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """How many targets are the best answer and among the best five (all classes if there are fewer)."""
    best = output.topk(min(5, output.shape[1]), dim=1).indices
    hits = best == target.unsqueeze(1)
    return hits[:, 0].sum().float(), hits.any(dim=1).sum().float()


def means_of(sums: list[float]) -> Means:
    """Means from the four sums."""
    loss, correct1, correct5, images = sums
    if images <= 0:
        return Means(math.nan, math.nan, math.nan, 0)
    return Means(loss / images, 100 * correct1 / images, 100 * correct5 / images, round(images))

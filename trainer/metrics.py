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
    """Sums of loss, correct@1, correct@5 and images over batches of one rank.

    A non-finite loss stays in the sum: a mean that holds one is not a number, and says so.
    """

    def __init__(self, device: torch.device, start: list[float] | None = None) -> None:
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._sums = torch.tensor(start or [0.0] * 4, dtype=dtype, device=device)

    @torch.no_grad()
    def add(self, loss: Tensor, output: Tensor, target: Tensor) -> None:
        """``loss``: mean over the batch; ``output`` (N, classes); ``target`` (N,) class indices."""
        images = target.shape[0]
        correct1, correct5 = correct_in_top(output, target)
        batch = torch.stack([loss.detach().float() * images, correct1, correct5, correct1.new_tensor(images)])
        self._sums += batch.to(self._sums.dtype)

    def local(self) -> list[float]:
        """This rank's sums; waits for the device."""
        return self._sums.tolist()

    def read(self, group: Group) -> list[float]:
        """The sums over all ranks; waits for the device."""
        return group.sum(self._sums).tolist()


def correct_in_top(output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """How many targets are the best answer and among the best five (all classes if there are fewer)."""
    best = output.topk(min(5, output.shape[1]), dim=1).indices
    hits = best == target.unsqueeze(1)
    return hits[:, 0].sum().float(), hits.any(dim=1).sum().float()


def means_of(sums: list[float], since: list[float] | None = None) -> Means:
    """Means from sums, or from what was added since an earlier reading."""
    loss, correct1, correct5, images = (now - then for now, then in zip(sums, since or [0.0] * 4, strict=True))
    if since is not None and not math.isfinite(since[0]):
        loss = math.nan  # infinity minus infinity says nothing of the steps between
    if images <= 0:
        return Means(math.nan, math.nan, math.nan, 0)
    return Means(loss / images, 100 * correct1 / images, 100 * correct5 / images, round(images))

"""Mixup (arXiv:1710.09412) and CutMix (arXiv:1905.04899) of a batch on the device."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from data.transforms import sample_seed


@dataclass(frozen=True)
class Mixer:
    """Mixes each image with its neighbour in the batch. ``mixup`` and ``cutmix``: parameters of the Beta
    distribution the share is drawn from, 0 for never; where both are given, each batch takes one of them."""

    mixup: float
    cutmix: float
    num_classes: int
    seed: int
    rank: int = 0

    def __call__(self, images: Tensor, target: Tensor, epoch: int, batch: int) -> tuple[Tensor, Tensor]:
        """``images`` (N, C, H, W) floating, changed in place and in their memory format; ``target`` (N,) int64.
        Returns them with targets as probabilities, (N, num_classes) float32.

        The draw is a function of (seed, rank, epoch, number of the batch): a resumed run draws the same.
        """
        generator = random.Random(sample_seed(sample_seed(self.seed, self.rank, -1), epoch, batch))
        ways = [way for way, alpha in ((_blend, self.mixup), (_paste, self.cutmix)) if alpha]
        way = generator.choice(ways)
        alpha = self.mixup if way is _blend else self.cutmix
        share = way(images, images.roll(1, 0), generator.betavariate(alpha, alpha), generator)
        # Not functional.one_hot, which reads the largest target back to check it.
        one_hot = torch.zeros(len(target), self.num_classes, device=target.device).scatter_(1, target[:, None], 1.0)
        return images, one_hot.lerp_(one_hot.roll(1, 0), 1 - share)


def _blend(images: Tensor, others: Tensor, share: float, generator: random.Random) -> float:
    images.lerp_(others, 1 - share)
    return share


def _paste(images: Tensor, others: Tensor, share: float, generator: random.Random) -> float:
    """A rectangle of 1 - share of the area around a random centre; what the edge cuts off goes to the first image."""
    height, width = images.shape[2:]
    half = 0.5 * math.sqrt(1 - share)
    row, column = generator.randrange(height), generator.randrange(width)
    top, bottom = max(0, int(row - half * height)), min(height, int(row + half * height))
    left, right = max(0, int(column - half * width)), min(width, int(column + half * width))
    images[:, :, top:bottom, left:right] = others[:, :, top:bottom, left:right]
    return 1 - (bottom - top) * (right - left) / (height * width)

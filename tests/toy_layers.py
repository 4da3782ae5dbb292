"""Models with modules that a per-layer profile must get right, for ``--arch toy_layers:NAME``."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

SLOW_SECONDS = 0.02


class SlowInChannelsLast(nn.Module):
    """Sleeps when its input is channels-last."""

    def forward(self, images: Tensor) -> Tensor:
        if not images.is_contiguous():
            time.sleep(SLOW_SECONDS)
        return images * 2


class Add(nn.Module):
    """Two inputs, the second by name."""

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other


class Scale(nn.Module):
    """A setting that ``extra_repr`` does not show."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, images: Tensor) -> Tensor:
        return images * self.factor


class OnlyInItsModel(nn.Module):
    """Fails outside its model."""

    inside = False

    def forward(self, images: Tensor) -> Tensor:
        if not self.inside:
            raise RuntimeError("not alone")
        return images


class OnlyInEval(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.clamp(min=0)


class Layers(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.one = nn.Conv2d(16, 16, 3, padding=1, groups=2)
        self.two = nn.Conv2d(16, 16, 3, padding=1, groups=2)
        self.narrow = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.relu = nn.ReLU(inplace=True)  # used on two shapes
        self.pool = nn.MaxPool2d(2)
        self.add = Add()
        self.twice, self.thrice = Scale(2.0), Scale(3.0)
        self.slow = SlowInChannelsLast()
        self.lonely = OnlyInItsModel()
        self.eval_only = OnlyInEval()
        self.plain = nn.Conv2d(16, 16, 1)  # its input is always contiguous
        self.head = nn.Linear(16, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.relu(self.stem(images))
        x = self.add(self.one(x), other=self.two(x))
        x = self.relu(self.pool(self.narrow(x)))
        if not self.training:
            x = self.eval_only(x)
        self.lonely.inside = True
        x = self.lonely(self.slow(self.thrice(self.twice(x))))
        self.lonely.inside = False
        x = self.plain(x.contiguous())
        with torch.no_grad():
            x = x + self.twice(x)
        return self.head(x.mean((2, 3)))


def layers(num_classes: int) -> nn.Module:
    return Layers(num_classes)


def flat(num_classes: int) -> nn.Module:
    """No module with a 4-D input but the first, a view."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, num_classes))


class Flattened(nn.Module):
    """No module inside takes a 4-D input."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 8 * 8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.flatten(1))


def flat_only(num_classes: int) -> nn.Module:
    return Flattened(num_classes)

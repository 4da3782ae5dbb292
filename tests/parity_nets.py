"""Models that are right or wrong in one memory format, for ``--arch parity_nets:NAME``."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ReadsRawMemory(nn.Conv2d):
    """Takes its input for contiguous whatever its strides say."""

    def forward(self, images: Tensor) -> Tensor:
        raw = images.as_strided(images.shape, torch.empty(images.shape).stride())
        return super().forward(raw)


class Net(nn.Module):
    """Two blocks; ``second`` is the class of the second convolution."""

    def __init__(self, num_classes: int, second: type[nn.Conv2d] = nn.Conv2d) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.second = second(8, 8, 3, padding=1)
        self.head = nn.Linear(8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.norm(self.first(images)))
        return self.head(self.relu(self.second(features)).mean((2, 3)))


def good(num_classes: int) -> nn.Module:
    return Net(num_classes)


def raw_memory(num_classes: int) -> nn.Module:
    return Net(num_classes, ReadsRawMemory)


class WrongInEval(ReadsRawMemory):
    def forward(self, images: Tensor) -> Tensor:
        return nn.Conv2d.forward(self, images) if self.training else super().forward(images)


def wrong_in_eval(num_classes: int) -> nn.Module:
    return Net(num_classes, WrongInEval)


class WrongGradient(torch.autograd.Function):
    """Forward is right; the gradient comes back 3 % too large in channels-last."""

    @staticmethod
    def forward(ctx, images):
        ctx.factor = 1.0 if images.is_contiguous() else 1.03
        return images.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor


class WrongBackward(nn.Conv2d):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(WrongGradient.apply(images))


def wrong_backward(num_classes: int) -> nn.Module:
    return Net(num_classes, WrongBackward)


class Between(Net):
    """Wrong between two layers: flattened in the order of memory."""

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu(self.second(self.relu(self.norm(self.first(images)))))
        size = features.shape[0]
        dense = features.permute(0, 2, 3, 1) if not features.is_contiguous() else features
        return self.head(dense.reshape(size, 8, -1).mean(2))


def between(num_classes: int) -> nn.Module:
    return Between(num_classes)


class Views(Net):
    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.first(images).view(len(images) * 8, -1).mean(1).view(-1, 8))


def views(num_classes: int) -> nn.Module:
    return Views(num_classes)


class NeedsFloat32(Net):
    def forward(self, images: Tensor) -> Tensor:
        if images.dtype is not torch.float32:
            raise RuntimeError("expected scalar type Float")
        return super().forward(images)


def needs_float32(num_classes: int) -> nn.Module:
    return NeedsFloat32(num_classes)


class Drops(Net):
    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes)
        self.spatial = nn.Dropout(0.5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.spatial(self.relu(self.norm(self.first(images)))).mean((2, 3)))


def drops(num_classes: int) -> nn.Module:
    return Drops(num_classes)

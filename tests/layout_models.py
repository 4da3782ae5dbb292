"""Models that lose channels-last in one known place each; ``# lost`` marks the line."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Kind(nn.Module):
    """The part of a model that loses the format; NCHW stand-ins come from a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("nchw", torch.ones(2, 8, 6, 6), persistent=False)


class Mixed(Kind):
    def forward(self, x: Tensor) -> Tensor:
        return self.nchw + x  # lost


class Cat(Kind):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.nchw, x], 1)[:, 4:12]  # lost


class Shuffle(Kind):
    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return x.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)  # lost


class Permuted(Kind):
    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x.transpose(2, 3), 3, 1, 1)  # lost


class Contiguous(Kind):
    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous()  # lost


class Pooling(Kind):
    def forward(self, x: Tensor) -> Tensor:
        return F.fractional_max_pool2d(x, 1, output_size=6, _random_samples=torch.full((2, 8, 2), 0.5))  # lost


class Softmax(Kind):
    """Over each row, in the order of the image."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x, 3)  # lost


class NoKernel(Kind):
    def forward(self, x: Tensor) -> Tensor:
        return F.fold(F.unfold(x, 1), (6, 6), 1)  # lost


class InPlaceHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.hardtanh(self.norm(x), 0.0, 6.0, inplace=True)  # lost
        return self.linear(x.mean((2, 3)))


class Doubled(torch.autograd.Function):
    """For a backward pass of one's own."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2


class Backward(Kind):
    class InNCHW(Doubled):
        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient.contiguous()  # lost

    def forward(self, x: Tensor) -> Tensor:
        return self.InNCHW.apply(x)


class Keeps(Kind):
    def forward(self, x: Tensor) -> Tensor:
        return x + self.nchw.to(memory_format=torch.channels_last)


class Flatten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8 * 6 * 6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))  # lost


class View(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8 * 6 * 6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.view(len(x), -1))  # lost


class Caught(Kind):
    """Code that knows a way around what refuses channels-last."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            return x.view(len(x), -1).view_as(x)
        except RuntimeError:
            return x * 2


class CaughtThenBroken(Caught):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ torch.ones(5, 5)


class RefusesGradient(Kind):
    class Flat(Doubled):
        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient.view(len(gradient), -1).view_as(gradient)

    def forward(self, x: Tensor) -> Tensor:
        return self.Flat.apply(x)


class Model(nn.Module):
    """Two convolutions around ``part``, each followed by batch norm and ReLU, global pooling and a linear head."""

    def __init__(self, part: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.stage = nn.Sequential(part)
        self.last = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.head = head or nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.last(self.stage(self.stem(images))))


class Innocent(nn.Module):
    """1x1 convolutions, squeeze-excite, depthwise convolution, global pooling of both spellings."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Conv2d(3, 8, 1)
        self.depth = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 2, 1), nn.ReLU(), nn.Conv2d(2, 8, 1), nn.Sigmoid()
        )
        self.gate = nn.Conv2d(8, 1, 1)
        self.last = nn.Conv2d(8, 8, 1)
        self.linear = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.depth(self.point(images)))
        x = x * self.squeeze(x)
        x = self.last(x * self.gate(x)).relu()
        return self.linear(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1)) + self.linear(x.mean((2, 3)))


def flatten(num_classes: int) -> nn.Module:
    return Model(Keeps(), Flatten())


def view(num_classes: int) -> nn.Module:
    return Model(Keeps(), View())


def caught(num_classes: int) -> nn.Module:
    return Model(Caught())


def caught_then_broken(num_classes: int) -> nn.Module:
    return Model(CaughtThenBroken())


def refuses_gradient(num_classes: int) -> nn.Module:
    return Model(RefusesGradient())


def shuffle(num_classes: int) -> nn.Module:
    return Model(Shuffle())


def mixed(num_classes: int) -> nn.Module:
    return Model(Mixed())


class OnesLike(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x, memory_format=torch.contiguous_format) + x


def mixed32(num_classes: int) -> nn.Module:
    return nn.Sequential(Model(OnesLike()), nn.Dropout(0.2))


class NoCopy(Model):
    def __deepcopy__(self, memo: object) -> NoCopy:
        raise TypeError("not this one")


def no_copy(num_classes: int) -> nn.Module:
    return NoCopy(Keeps32())


class Keeps32(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2

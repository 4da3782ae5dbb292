"""Models of a few milliseconds for ``--arch toy_models:NAME``; some misbehave on purpose."""

from __future__ import annotations

import os
import random
import signal
import time

import torch
from torch import Tensor, nn


class Tiny(nn.Module):
    """Strided, depthwise, pointwise and odd-width convolutions, batch norm, dropout, a linear head."""

    def __init__(self, num_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 12, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False),
            nn.Conv2d(12, 13, 1, bias=False),
            nn.BatchNorm2d(13),
            nn.ReLU(),
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(13, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.dropout(self.features(images).mean((2, 3))))


def tiny(num_classes: int) -> nn.Module:
    return Tiny(num_classes)


def dropping(num_classes: int) -> nn.Module:
    return Tiny(num_classes, dropout=0.5)


def plain(num_classes: int) -> nn.Module:
    """No batch norm: its gradients do not depend on how a batch is split."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes)
    )


def every_convolution(num_classes: int) -> nn.Module:
    """Strided, depthwise, grouped and odd-width 1x1 convolutions, and no batch norm."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1, groups=12),
        nn.Conv2d(12, 12, 3, padding=1, groups=3),
        nn.ReLU(),
        nn.Conv2d(12, 13, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(13, num_classes),
    )


class Poisoned(Tiny):
    """Non-finite output in the training forward passes numbered in ``bad`` (from 0)."""

    def __init__(self, num_classes: int, bad: set[int], value: float = float("nan")) -> None:
        super().__init__(num_classes)
        self.bad = bad
        self.value = value
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            if self.calls - 1 in self.bad:
                images = torch.full_like(images, self.value)
        return super().forward(images)


def nan_first(num_classes: int) -> nn.Module:
    return Poisoned(num_classes, {0})


def nan_third(num_classes: int) -> nn.Module:
    return Poisoned(num_classes, {2})


def inf_third(num_classes: int) -> nn.Module:
    return Poisoned(num_classes, {2}, float("inf"))


def nan_always(num_classes: int) -> nn.Module:
    return Poisoned(num_classes, set(range(1000)))


class TwoOfThem(nn.Module):
    """Also holds a 5-D and a 3-D weight that no memory format touches."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.volume = nn.Parameter(torch.zeros(2, 2, 3, 3, 3))
        self.rows = nn.Parameter(torch.zeros(2, 3, 4))
        self.body = Tiny(num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images) + self.volume.sum() + self.rows.sum()


def odd_ranks(num_classes: int) -> nn.Module:
    return TwoOfThem(num_classes)


def nan_third_on_rank_1(num_classes: int) -> nn.Module:
    return Poisoned(num_classes, {2} if os.environ.get("RANK") == "1" else set())


class Broken(Tiny):
    def forward(self, images: Tensor) -> Tensor:
        raise RuntimeError("this model is broken")


def broken(num_classes: int) -> nn.Module:
    return Broken(num_classes)


class InfiniteLoss(Poisoned):
    """A logit of minus infinity for class 0: the loss is infinite, its gradients are finite."""

    def forward(self, images: Tensor) -> Tensor:
        output = Tiny.forward(self, images)
        if self.training:
            self.calls += 1
            if self.calls - 1 in self.bad:
                output = output + torch.tensor([float("-inf")] + [0.0] * (output.shape[1] - 1))
        return output


def infinite_loss_third(num_classes: int) -> nn.Module:
    return InfiniteLoss(num_classes, {2})


class WithExtraState(Tiny):
    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 3}


def with_extra_state(num_classes: int) -> nn.Module:
    return WithExtraState(num_classes)


def frozen(num_classes: int) -> nn.Module:
    return Tiny(num_classes).requires_grad_(False)


def broken_on_the_first_attempt(num_classes: int) -> nn.Module:
    return Broken(num_classes) if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" else Tiny(num_classes)


class Killed(Tiny):
    """Dies by SIGKILL in the second training pass after a validation, on the first attempt."""

    def forward(self, images: Tensor) -> Tensor:
        self.validated = getattr(self, "validated", False) or not self.training
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if self.training and self.validated and first and len(os.listdir("runs")):
            checkpoints = [name for run in os.listdir("runs") for name in os.listdir(f"runs/{run}/checkpoints")]
            if "last.pt" in checkpoints:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(images)


def killed_after_an_epoch(num_classes: int) -> nn.Module:
    return Killed(num_classes)


class SyncWatched(Tiny):
    """From the second training pass to the twelfth, a call that waits for the device is an error; for the whole
    process, so a test that starts this calls ``allow_waiting`` in the end."""

    passes = 0

    @staticmethod
    def allow_waiting() -> None:
        torch.cuda.set_sync_debug_mode("default")

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
            if self.passes == 2:
                torch.cuda.set_sync_debug_mode("error")
            elif self.passes == 12:
                self.allow_waiting()
        return super().forward(images)


def sync_watched(num_classes: int) -> nn.Module:
    return SyncWatched(num_classes)


class WrongInChannelsLast(Tiny):
    """An op that computes something else in one memory format."""

    def forward(self, images: Tensor) -> Tensor:
        scale = 1.5 if images.is_contiguous(memory_format=torch.channels_last) else 1.0
        return scale * super().forward(images) + scale


def wrong_in_channels_last(num_classes: int) -> nn.Module:
    return WrongInChannelsLast(num_classes)


class Sleepy(Tiny):
    """Steps of about 40 ms."""

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            time.sleep(0.04)
        return super().forward(images)


def sleepy(num_classes: int) -> nn.Module:
    return Sleepy(num_classes)


class MovedClock:
    """Stands in for the ``time`` module of the step timer."""

    now = 0.0
    noise = random.Random(1)

    @classmethod
    def perf_counter(cls) -> float:
        return cls.now


class OnTheClock(Tiny):
    """A training pass takes ``seconds`` of MovedClock, give or take two percent."""

    def __init__(self, num_classes: int, seconds: float) -> None:
        super().__init__(num_classes)
        self.seconds = seconds

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            MovedClock.now += self.seconds * MovedClock.noise.uniform(0.98, 1.02)
        return super().forward(images)


def on_the_clock(num_classes: int) -> nn.Module:
    return OnTheClock(num_classes, 0.1)


def slower_on_the_clock(num_classes: int) -> nn.Module:
    return OnTheClock(num_classes, 0.11)


class Signalled(Tiny):
    """Sends its own process what TOY_SIGNALS says, "NAMES MODE PASS RANK" such as "SIGINT,SIGINT train 3 0", in that
    forward pass (from 1) of that mode (train or val), on the first attempt under torchrun, and with a ``^`` before the
    name its parent; has dropout."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, dropout=0.5)
        self.passes = {"train": 0, "val": 0}

    def forward(self, images: Tensor) -> Tensor:
        mode = "train" if self.training else "val"
        self.passes[mode] += 1
        names, when, at, rank = os.environ.get("TOY_SIGNALS", "none never 0 0").split()
        here = os.environ.get("RANK", "0") == rank and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if here and (mode, self.passes[mode]) == (when, int(at)):
            for name in names.split(","):
                os.kill(os.getppid() if name[0] == "^" else os.getpid(), getattr(signal, name.lstrip("^")))
        return super().forward(images)


def signalled(num_classes: int) -> nn.Module:
    return Signalled(num_classes)


class PoisonedByImages(Tiny):
    """The images of the training passes numbered in ``bad`` (from 0) give NaN, whenever they come again."""

    def __init__(self, num_classes: int, bad: set[int]) -> None:
        super().__init__(num_classes, dropout=0.5)
        self.bad = bad
        self.calls = 0
        self.sums: set[float] = set()

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            checksum = float(images.double().sum())
            if self.calls in self.bad:
                self.sums.add(checksum)
            self.calls += 1
            if checksum in self.sums:
                images = torch.full_like(images, float("nan"))
        return super().forward(images)


def bad_images_sixth(num_classes: int) -> nn.Module:
    return PoisonedByImages(num_classes, {5})


def bad_images_second(num_classes: int) -> nn.Module:
    return PoisonedByImages(num_classes, {1})


def bad_images_second_and_third(num_classes: int) -> nn.Module:
    return PoisonedByImages(num_classes, {1, 2})


def bad_images_second_and_fourth(num_classes: int) -> nn.Module:
    return PoisonedByImages(num_classes, {1, 3})


def bad_images_often(num_classes: int) -> nn.Module:
    return PoisonedByImages(num_classes, set(range(1, 100, 2)))


def dropping_pixels(num_classes: int) -> nn.Module:
    """Dropout over a 4-D tensor: its mask follows the order of memory."""
    return nn.Sequential(nn.Dropout(0.5), Tiny(num_classes))

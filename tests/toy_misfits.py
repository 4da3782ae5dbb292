"""Models that no run can train, for ``--arch toy_misfits:NAME``."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from toy_models import Tiny


class Returning(Tiny):
    """Hands its logits over in another way; ``wrap`` makes what ``forward`` returns of them."""

    def __init__(self, num_classes: int, wrap: Callable[[Tensor], object]) -> None:
        super().__init__(num_classes)
        self.wrap = wrap

    def forward(self, images: Tensor) -> object:  # type: ignore[override]
        return self.wrap(super().forward(images))


def in_a_dict(num_classes: int) -> nn.Module:
    return Returning(num_classes, lambda logits: {"out": logits})


def too_narrow(num_classes: int) -> nn.Module:
    """Its classifier waits for more than it gets."""
    return nn.Sequential(nn.Flatten(), nn.Linear(100, num_classes))


def nothing(num_classes: int) -> nn.Module:
    return Returning(num_classes, lambda logits: None)


def without_classes() -> nn.Module:
    return Tiny(4)


def lazy(num_classes: int) -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))

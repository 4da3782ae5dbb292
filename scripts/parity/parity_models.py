"""Models for check_parity: one with odd widths, another first convolution, batch norms that see too little."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainer.errors import UserError

# Batch norm over few values a channel magnifies rounding: over two it gives -1 and 1 whatever it is given.
FEW_VALUES = 16


def thin_norms(model: nn.Module, images: Tensor) -> list[str]:
    """Batch norms that see fewer than ``FEW_VALUES`` values a channel in a training step of this batch."""
    thin: list[str] = []
    model = copy.deepcopy(model)

    def watch(name: str) -> Any:
        def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            values = inputs[0].numel() // inputs[0].shape[1]
            if values < FEW_VALUES:
                thin.append(f"{name} ({values})")

        return before

    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            module.register_forward_pre_hook(watch(name))
    with torch.no_grad():
        model.eval()(images)
    return thin


def with_in_channels(model: nn.Module, channels: int) -> nn.Module:
    """``model`` whose first convolution takes ``channels`` channels. Raises UserError where there is none."""
    for name, module in model.named_modules():
        if not isinstance(module, nn.Conv2d) or module.groups != 1:
            continue
        if module.in_channels != channels:
            kept = ("out_channels", "kernel_size", "stride", "padding", "dilation", "padding_mode")
            options = {key: getattr(module, key) for key in kept}
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, nn.Conv2d(channels, bias=module.bias is not None, **options))
        return model
    raise UserError("--in-channels: this model has no convolution to take them")


class OddWidths(nn.Module):
    """Channel counts that are no power of two or multiple of eight, every kind of convolution, batch norm over 65."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 13, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(13),
            nn.ReLU(inplace=True),
            nn.Conv2d(13, 13, 3, padding=1, groups=13),
            nn.Conv2d(13, 65, 1),
            nn.BatchNorm2d(65),
            nn.Hardswish(),
            nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(65, 35, 3, padding=1, groups=5, bias=False),
            nn.BatchNorm2d(35),
            nn.SiLU(),
            nn.AvgPool2d(2),
        )
        self.dropout = nn.Dropout2d(0.2)
        self.head = nn.Linear(35, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.dropout(self.features(images)).mean((2, 3)))

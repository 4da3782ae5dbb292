"""``--freeze-backbone``: train the classifier alone."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from trainer.errors import UserError
from trainer.models import build_model


def freeze_backbone(model: nn.Module, arch: str, num_classes: int) -> str:
    """Leave only the classifier trainable; returns a line for the log.

    The classifier is what has another shape where the model is built for one class more. Raises UserError where
    nothing has.
    """
    with torch.random.fork_rng(devices=[]):
        other = dict(build_model(arch, num_classes + 1).named_parameters())
    head = [name for name, parameter in model.named_parameters() if parameter.shape != other[name].shape]
    if not head:
        raise UserError(
            f"--freeze-backbone: no parameter of {arch} follows --num-classes, so it has no classifier", True
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in head)
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    total = sum(parameter.numel() for parameter in model.parameters())
    return f"frozen: all but {', '.join(head)} ({count} of {total} parameters train); batch norm keeps its statistics"


def frozen_norms(model: nn.Module) -> list[nn.Module]:
    """Layers with running statistics none of whose parameters trains."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _NormBase) and not any(parameter.requires_grad for parameter in module.parameters())
    ]

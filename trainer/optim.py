"""Optimizer and learning rate. The rate is a pure function of the global step: nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# What each optimizer must find of a parameter to go on from, and what it may find beside it.
_STATE: dict[type[Optimizer], tuple[set[str], set[str]]] = {
    torch.optim.SGD: (set(), {"momentum_buffer"}),
    torch.optim.AdamW: ({"step", "exp_avg", "exp_avg_sq"}, set()),
    torch.optim.RMSprop: ({"step", "square_avg"}, {"momentum_buffer"}),
}


def build_optimizer(
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    lr: float,
    momentum: float,
    weight_decay: float,
    device: torch.device,
    name: str = "sgd",
) -> Optimizer:
    """torch's own, fused where it has that for the device (CPU, CUDA). ``parameters``: those, or groups of them.

    RMSprop's alpha and eps are those with which torchvision's reference trains MobileNetV3.
    """
    fused = True if device.type in ("cpu", "cuda") else None
    shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
    if name == "adamw":
        return torch.optim.AdamW(parameters, fused=fused, **shared)
    if name == "rmsprop":
        return torch.optim.RMSprop(parameters, alpha=0.9, eps=0.0316, momentum=momentum, **shared)
    optimizer = torch.optim.SGD(parameters, momentum=momentum, nesterov=name == "nesterov", fused=fused, **shared)
    zero_missing_momentum(optimizer)
    return optimizer


def decay_groups(
    model: nn.Module, stepped: Sequence[nn.Parameter], decay: float, norm: float | None, bias: float | None
) -> list[dict[str, Any]]:
    """Parameter groups by weight decay: ``bias`` for every bias, ``norm`` for the rest of normalisation layers, as
    torchvision's reference has it; None: as what is left, ``decay``.

    ``stepped``: what the optimizer is to step, one for each trainable parameter of ``model`` and in their order.
    """
    decays: dict[int, float] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            own = norm if norm is not None and isinstance(module, _NORMS) else decay
            decays.setdefault(id(parameter), bias if bias is not None and name.endswith("bias") else own)
    groups: dict[float, list[nn.Parameter]] = {}
    trainable = (parameter for parameter in model.parameters() if parameter.requires_grad)
    for parameter, target in zip(trainable, stepped, strict=True):
        groups.setdefault(decays[id(parameter)], []).append(target)
    return [{"params": members, "weight_decay": each} for each, members in groups.items()]


@torch.no_grad()
def zero_missing_momentum(optimizer: Optimizer) -> None:
    """Create SGD's momentum as zeros where there is none yet.

    Fused SGD makes it with ``empty_like`` at its first step; if that one is skipped for a non-finite
    gradient, garbage stays in it. A first step from zeros is the same: 0 * momentum + gradient.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if not group.get("momentum"):
            continue
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)


def state_fits(optimizer: Optimizer, parameter: Tensor, entry: Mapping[str, Any]) -> bool:
    """Whether ``entry``, a file's state of a parameter, is one that this optimizer can go on from."""
    needed, known = _STATE[type(optimizer)]
    if needed and optimizer.param_groups[0].get("momentum"):
        needed = needed | known
    tensors = [value for value in entry.values() if isinstance(value, Tensor) and value.dim() > 0]
    return needed <= set(entry) <= needed | known and all(value.shape == parameter.shape for value in tensors)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


@dataclass(frozen=True)
class LRSchedule:
    """Learning rate of each global step (0-based), skipped steps included.

    Linear warm-up from ``warmup_decay * lr``, reaching ``lr`` at its last step (step k of w has the
    share (k + 1) / w, as apex's main_amp.py counts), then drops by ``gamma`` at ``milestones``, never
    below ``least``, or a half cosine from ``lr`` to ``least`` over the rest (Loshchilov and Hutter,
    arXiv:1608.03983). All in steps.
    """

    lr: float
    total_steps: int
    warmup_steps: int = 0
    warmup_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    cosine: bool = False
    least: float = 0.0

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            share = (step + 1) / self.warmup_steps
            return self.lr * (self.warmup_decay + (1 - self.warmup_decay) * share)
        if self.cosine:
            rest = max(1, self.total_steps - self.warmup_steps)
            share = 0.5 * (1 + math.cos(math.pi * min(1.0, (step - self.warmup_steps) / rest)))
            return self.least + (self.lr - self.least) * share
        return max(self.least, self.lr * self.gamma ** sum(step >= stone for stone in self.milestones))

    def describe(self) -> str:
        """What the rate does, for the log."""
        course = (
            f"half cosine to {self.least:g}"
            if self.cosine
            else f"x {self.gamma:g} at steps {', '.join(map(str, self.milestones)) or 'none'}"
        )
        return f"warm-up {self.warmup_steps} steps, then {course}, {self.total_steps} steps in all"


def build_lr_schedule(
    lr: float,
    epochs: int,
    steps_per_epoch: int,
    warmup: tuple[float, float],
    cosine: bool,
    drops: tuple[float, ...],
    gamma: float,
    least: float = 0.0,
) -> LRSchedule:
    """Epochs to steps, rounded once. ``warmup``: (epochs, start share); ``drops``: epochs; ``least``: the lowest rate."""
    warmup_epochs, warmup_decay = warmup
    return LRSchedule(
        lr=lr,
        total_steps=epochs * steps_per_epoch,
        warmup_steps=round(warmup_epochs * steps_per_epoch),
        warmup_decay=warmup_decay,
        # The first step has the asked rate however short the run.
        milestones=tuple(max(1, round(drop * steps_per_epoch)) for drop in drops),
        gamma=gamma,
        cosine=cosine,
        least=least,
    )


def scale_lr(lr: float, global_batch_size: int, rule: str) -> tuple[float, str]:
    """The rate of a global batch and a line that says how it came about."""
    if rule == "none":
        return lr, f"lr {lr:g} (not scaled)"
    scaled = lr * global_batch_size / 256
    return scaled, f"lr {lr:g} x {global_batch_size}/256 = {scaled:g}"


def default_milestones(epochs: int) -> tuple[float, ...]:
    """main_amp.py's 30, 60 and 80 of 90 epochs, scaled."""
    return tuple(stone * epochs / 90 for stone in (30, 60, 80))


def default_warmup(epochs: int) -> float:
    """main_amp.py's 5 of 90 epochs, scaled."""
    return 5 * epochs / 90


def drop_epochs(milestones: tuple[float, ...] | None, step_size: float | None, epochs: int) -> tuple[float, ...]:
    """Epochs at which the rate drops, from either way of asking."""
    if step_size is not None:
        return tuple(step_size * count for count in range(1, math.ceil(epochs / step_size)))
    return milestones if milestones is not None else default_milestones(epochs)

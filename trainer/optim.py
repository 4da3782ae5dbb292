"""Optimizer and learning rate. The rate is a pure function of the global step: nothing to restore."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn


def build_optimizer(
    parameters: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float, device: torch.device
) -> torch.optim.SGD:
    """SGD, fused where the device has it (CPU, CUDA), else torch's own choice."""
    fused = True if device.type in ("cpu", "cuda") else None
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=fused)
    zero_missing_momentum(optimizer)
    return optimizer


@torch.no_grad()
def zero_missing_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Create momentum as zeros where there is none yet.

    Fused SGD makes it with ``empty_like`` at its first step; if that one is skipped for a non-finite
    gradient, garbage stays in it. A first step from zeros is the same: 0 * momentum + gradient.
    """
    for group in optimizer.param_groups:
        if not group.get("momentum"):
            continue
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(parameter)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


@dataclass(frozen=True)
class LRSchedule:
    """Learning rate of each global step (0-based), skipped steps included.

    Linear warm-up from ``warmup_decay * lr``, reaching ``lr`` at its last step (step k of w has the
    share (k + 1) / w, as apex's main_amp.py counts), then drops by ``gamma`` at ``milestones``, or a
    half cosine from ``lr`` to 0 over the rest (Loshchilov and Hutter, arXiv:1608.03983). All in steps.
    """

    lr: float
    total_steps: int
    warmup_steps: int = 0
    warmup_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    cosine: bool = False

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            share = (step + 1) / self.warmup_steps
            return self.lr * (self.warmup_decay + (1 - self.warmup_decay) * share)
        if self.cosine:
            rest = max(1, self.total_steps - self.warmup_steps)
            return self.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - self.warmup_steps) / rest)))
        return self.lr * self.gamma ** sum(step >= stone for stone in self.milestones)

    def describe(self) -> str:
        """What the rate does, for the log."""
        course = (
            "half cosine to 0"
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
) -> LRSchedule:
    """Epochs to steps, rounded once. ``warmup``: (epochs, start share); ``drops``: epochs."""
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

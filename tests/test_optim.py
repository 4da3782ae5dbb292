"""Learning rates against an independent table, and the optimizer's first state."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from trainer.config import TrainConfig
from trainer.optim import (
    LRSchedule,
    build_lr_schedule,
    build_optimizer,
    default_milestones,
    default_warmup,
    drop_epochs,
    scale_lr,
    set_lr,
    zero_missing_momentum,
)

CPU = torch.device("cpu")


def main_amp_rate(lr: float, global_batch: int, epoch: int, step: int, steps_per_epoch: int) -> float:
    """apex's main_amp.py, with ``step`` counted from 0: a tenth from epochs 30, 60 and 80 on, five epochs of warm-up."""
    rate = lr * global_batch / 256
    rate *= 0.1 ** (epoch // 30 + (1 if epoch >= 80 else 0))
    if epoch < 5:
        rate *= (1 + step + epoch * steps_per_epoch) / (5 * steps_per_epoch)
    return rate


def schedule_of(
    epochs: int,
    steps_per_epoch: int,
    lr: float = 1.0,
    warmup: tuple[float, float] | None = None,
    drops: tuple[float, ...] | None = None,
    cosine: bool = False,
    gamma: float = 0.1,
) -> LRSchedule:
    warmup = (default_warmup(epochs), 0.0) if warmup is None else warmup
    drops = default_milestones(epochs) if drops is None else drops
    return build_lr_schedule(lr, epochs, steps_per_epoch, warmup, cosine, () if cosine else drops, gamma)


def rates(schedule: LRSchedule) -> list[float]:
    return [schedule(step) for step in range(schedule.total_steps)]


# Learning rate


@pytest.mark.parametrize(("batch", "steps_per_epoch"), [(256, 7), (1024, 125), (200, 1)])
def test_ninety_epochs_follow_main_amp_step_by_step(batch: int, steps_per_epoch: int):
    """R99: the first step has a share of the warm-up, its last the whole rate."""
    scaled, _ = scale_lr(0.1, batch, "linear")
    table = [
        main_amp_rate(0.1, batch, epoch, step, steps_per_epoch)
        for epoch in range(90)
        for step in range(steps_per_epoch)
    ]
    assert rates(schedule_of(90, steps_per_epoch, scaled)) == pytest.approx(table, rel=1e-12)


def test_three_epochs_scale_warmup_and_milestones():
    """R99: 5/90, 30/90, 60/90 and 80/90 of 3 epochs of 36 steps are steps 6, 36, 72 and 96."""
    table = [(step + 1) / 6 for step in range(6)] + [1.0] * 30 + [0.1] * 36 + [0.01] * 24 + [0.001] * 12
    assert rates(schedule_of(3, 36)) == pytest.approx(table)


def test_epochs_are_rounded_to_steps_once():
    """10 steps an epoch: 1.67 -> 2 of warm-up, drops at 10, 20 and 26.7 -> 27."""
    table = [0.5, 1.0] + [1.0] * 8 + [0.1] * 10 + [0.01] * 7 + [0.001] * 3
    assert rates(schedule_of(3, 10)) == pytest.approx(table)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_first_step_of_a_tiny_run_has_the_asked_rate(steps: int):
    assert schedule_of(1, steps)(0) == 1.0


def test_cosine_starts_at_the_rate_and_nears_zero():
    schedule = schedule_of(2, 10, warmup=(0.4, 0.0), cosine=True)
    table = [0.25, 0.5, 0.75, 1.0] + [0.5 * (1 + math.cos(math.pi * step / 16)) for step in range(16)]
    assert rates(schedule) == pytest.approx(table)
    assert schedule(20) == pytest.approx(0)
    assert schedule(100) == pytest.approx(0)


def test_warmup_decay_is_where_the_warmup_starts():
    schedule = schedule_of(1, 8, warmup=(0.5, 0.2), drops=(1.0,))
    assert rates(schedule) == pytest.approx([0.4, 0.6, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert rates(schedule_of(1, 4, warmup=(0.5, 1.0), drops=(1.0,))) == [1.0] * 4


@pytest.mark.parametrize(
    ("milestones", "step_size", "epochs", "expected"),
    [
        (None, None, 90, (30, 60, 80)),
        (None, None, 3, (1, 2, 8 / 3)),
        ((2.5, 4.0), None, 9, (2.5, 4.0)),
        (None, 30.0, 90, (30, 60)),
        (None, 40.0, 90, (40, 80)),
        (None, 0.5, 2, (0.5, 1.0, 1.5)),
        (None, 5.0, 3, ()),
    ],
)
def test_epochs_at_which_the_rate_drops(milestones, step_size, epochs, expected):
    assert drop_epochs(milestones, step_size, epochs) == pytest.approx(expected)


def test_explicit_milestones_and_gamma():
    schedule = schedule_of(4, 2, warmup=(0.0, 0.0), drops=(1.0, 2.5), gamma=0.5)
    assert rates(schedule) == pytest.approx([1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25])
    assert set(rates(schedule_of(4, 2, warmup=(0.0, 0.0), gamma=1.0))) == {1.0}


def test_step_size_drops_every_so_many_epochs():
    schedule = schedule_of(3, 2, warmup=(0.0, 0.0), drops=drop_epochs(None, 1.0, 3))
    assert rates(schedule) == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_the_rate_is_a_function_of_the_step_alone():
    """R77: nothing to restore; the rest of a schedule is the same from any step."""
    schedule = schedule_of(4, 25)
    assert [schedule(step) for step in range(50, 100)] == rates(schedule)[50:]
    assert rates(schedule) == rates(schedule_of(4, 25))


def test_settings_reach_the_schedule():
    from trainer.build import build_schedule

    config = TrainConfig(epochs=3, lr_milestones=(1.0, 2.0), lr_warmup_epochs=0.5, lr=0.1, lr_gamma=0.5)
    schedule, line = build_schedule(config, global_batch_size=512, steps_per_epoch=4)
    assert rates(schedule) == pytest.approx([0.1, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05])
    batch = "batch 256 x 2 processes x 1 a step = 512 images"
    assert line == f"{batch}; lr 0.1 x 512/256 = 0.2; warm-up 2 steps, then x 0.5 at steps 4, 8, 12 steps in all"
    config = config.replace(lr_milestones=None, lr_schedule="cosine", lr_scaling="none")
    schedule, line = build_schedule(config, global_batch_size=512, steps_per_epoch=4)
    assert schedule(2) == 0.1
    assert line == f"{batch}; lr 0.1 (not scaled); warm-up 2 steps, then half cosine to 0, 12 steps in all"


@pytest.mark.parametrize(
    ("batch", "rule", "rate", "line"),
    [
        (1024, "linear", 0.4, "lr 0.1 x 1024/256 = 0.4"),
        (200, "linear", 0.078125, "lr 0.1 x 200/256 = 0.078125"),
        (1024, "none", 0.1, "lr 0.1 (not scaled)"),
    ],
)
def test_the_rate_of_a_global_batch_is_told(batch: int, rule: str, rate: float, line: str):
    assert scale_lr(0.1, batch, rule) == (pytest.approx(rate), line)


# Optimizer


def test_momentum_starts_as_zeros_in_the_parameters_format():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    optimizer = build_optimizer(model.parameters(), 0.1, 0.9, 1e-4, CPU)
    for parameter in model.parameters():
        momentum = optimizer.state[parameter]["momentum_buffer"]
        assert torch.count_nonzero(momentum) == 0
        assert momentum.stride() == parameter.stride()
    assert optimizer.defaults["fused"] is True


def test_momentum_that_is_there_stays():
    parameter = nn.Parameter(torch.ones(3))
    optimizer = build_optimizer([parameter], 0.1, 0.9, 0.0, CPU)
    optimizer.state[parameter]["momentum_buffer"].fill_(7)
    zero_missing_momentum(optimizer)
    assert optimizer.state[parameter]["momentum_buffer"].tolist() == [7, 7, 7]


def test_no_momentum_needs_no_state():
    optimizer = build_optimizer([nn.Parameter(torch.ones(3))], 0.1, 0.0, 0.0, CPU)
    assert not optimizer.state


def test_steps_from_zero_momentum_equal_torchs_own_first_steps():
    torch.manual_seed(0)
    ours, theirs = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(4, 3))
    optimizers = (
        build_optimizer([ours], 0.1, 0.9, 1e-2, CPU),
        torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=1e-2, fused=False, foreach=False),
    )
    for step in range(3):
        gradient = torch.randn(4, 3)
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = gradient.clone()
            set_lr(optimizer, 0.1 / (step + 1))
            optimizer.step()
    assert torch.allclose(ours, theirs, atol=1e-7)

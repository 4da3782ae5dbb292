"""Steps of a toy model at a level of precision, for tests."""

from __future__ import annotations

import torch
from toy_models import tiny

from trainer.distributed import Group, Ranks
from trainer.levels import DTYPES, level_options, override_options
from trainer.memory_format import apply_to_model
from trainer.metrics import RunningSums
from trainer.optim import build_optimizer
from trainer.precision import Precision
from trainer.profiling import StepProfiler
from trainer.step import Stepper
from trainer.timing import Clock, StepTimer

CPU = torch.device("cpu")


def build(level, dtype="bfloat16", keep=None, scale=None, channels_last=True, clip=None, factory=tiny):
    torch.manual_seed(0)
    half = DTYPES[dtype]
    precision = Precision(override_options(level_options(level, half), keep, scale), half, CPU)
    model = factory(4)
    apply_to_model(model, torch.channels_last if channels_last else torch.contiguous_format)
    precision.convert_model(model).train()
    optimizer = build_optimizer(precision.bind(model), 0.1, 0.9, 1e-4, CPU)
    return Stepper(model, model, optimizer, precision, Group(Ranks(), CPU), clip_grad_norm=clip)


def take(stepper, steps=1, seed=1):
    """Some steps on fixed random images; returns the norm of the last."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        images = torch.randn(8, 3, 16, 16, generator=generator).to(memory_format=torch.channels_last)
        batches = iter([(images.to(stepper.precision.input_dtype), torch.arange(8) % 4)])
        plan = type("Plan", (), {"images": 8, "batch_sizes": (8,)})()
        timer = StepTimer(Clock(CPU), 0, 1)
        stepper.step(step, plan, batches, 0.1, RunningSums(CPU), timer, StepProfiler(None, None, CPU))
    return stepper.health().grad_norm

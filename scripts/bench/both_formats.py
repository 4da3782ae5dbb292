"""One model as train.py builds it, in both memory formats, and its whole step in either."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import common
import torch
from torch import Tensor

from trainer import build, resolve
from trainer.checks import AMP_DTYPES, CPU_HEAPS, DEVICES, OPT_LEVELS
from trainer.config import TrainConfig
from trainer.exits import Session
from trainer.levels import dtype_name
from trainer.memory_format import memory_format_name, resolve_memory_format
from trainer.models import TrainingLoss
from trainer.step import Stepper

CONTIGUOUS, CHANNELS_LAST = FORMATS = ("contiguous_format", "channels_last")
MODES = ("train", "eval")


def add_model_options(parser: argparse.ArgumentParser, batch_size: int) -> None:
    """What the model is and how it is trained, in train.py's words."""
    add = parser.add_argument_group("model").add_argument
    add("-b", "--batch-size", type=common.at_least(2), default=batch_size, metavar="N", help=f"images ({batch_size})")
    add("--image-size", type=common.at_least(1), metavar="N", help="pixels a side (the model's own)")
    add("--num-classes", type=common.at_least(1), default=1000, metavar="N", help="outputs (1000)")
    add("--opt-level", choices=OPT_LEVELS, help="precision (O1 on CUDA, O0 on a CPU)")
    add("--amp-dtype", choices=AMP_DTYPES, default="auto", help="the half type of O1 to O3 (auto)")
    add("--mode", choices=MODES, default="train", help="eval: forward passes alone, as validation makes them (train)")


def add_machine_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("machine").add_argument
    add("--device", choices=DEVICES, default="auto", help="where to run (auto)")
    heaps = tuple(heap for heap in CPU_HEAPS if heap != "auto")
    add("--cpu-heap", choices=heaps, default="retain", help="glibc heap of this process, both formats (retain)")


class BothFormats:
    """Two models of equal weights on one device, and one batch of made-up normalised images (N, 3, H, W)."""

    def __init__(self, args: argparse.Namespace) -> None:
        asked = TrainConfig(
            arch=args.arch,
            batch_size=args.batch_size,
            image_size=args.image_size,
            num_classes=args.num_classes,
            opt_level=args.opt_level,
            amp_dtype=args.amp_dtype,
            device=args.device,
            cpu_heap=args.cpu_heap,
            lr=0.0,  # an update costs the same, and the weights stay finite
        )
        self.arch = args.arch
        group, self.threads = build.open_group(asked.device, asked.deterministic, asked.tf32, Session())
        self.device = group.device
        self.training = args.mode == "train"
        self.config, _ = resolve.resolve_config(asked, group.device, group.ranks, None)
        self.steppers: dict[str, Stepper] = {}
        for name in FORMATS:
            config = self.config.replace(channels_last=name == CHANNELS_LAST)
            built = build.build_stepper(config, group, new_weights=True)
            built.stepper.model.train(self.training)
            self.steppers[name], self.heap = built.stepper, built.heap
        self._criterion = TrainingLoss()
        generator = torch.Generator().manual_seed(self.config.seed)
        size = self.config.image_size or 0
        self._images = torch.randn(self.config.batch_size, 3, size, size, generator=generator)
        classes = self.config.num_classes or 0
        self._target = torch.randint(classes, (self.config.batch_size,), generator=generator).to(self.device)

    @property
    def half(self) -> torch.dtype:
        return self.steppers[CONTIGUOUS].precision.half

    def title(self) -> str:
        config, heap = self.config, self.heap
        half = "" if config.opt_level == "O0" else f" {dtype_name(self.half)}"
        mode = "training" if self.training else "evaluation"
        line = f"{config.arch} b{config.batch_size} {config.image_size} px, {config.opt_level}{half}, {mode}"
        memory = f", heap {heap['choice']} ({heap['why']}), {self.threads} threads" if self.device.type == "cpu" else ""
        return f"{line}, {self.device.type}{memory}"

    def images(self, memory_format: str) -> Tensor:
        """The batch as the feed hands it to this model."""
        dtype = self.steppers[memory_format].precision.input_dtype
        return self._images.to(self.device, dtype, memory_format=resolve_memory_format(memory_format == CHANNELS_LAST))

    def forward(self, memory_format: str, images: Tensor) -> Any:
        """Output of one forward pass, as training or validation makes it."""
        stepper = self.steppers[memory_format]
        grad = contextlib.nullcontext() if self.training else torch.no_grad()
        with common.refused_batch_named(self.arch, images.shape), grad, stepper.precision.autocast():
            return stepper.model(images)

    def step(self, memory_format: str) -> Callable[[], Iterator[None]]:
        """A whole step as one timed part: in training forward, loss, backward and update, else the forward pass."""
        stepper, images = self.steppers[memory_format], self.images(memory_format)
        precision, zero = stepper.precision, torch.zeros((), device=self.device)

        def call() -> Iterator[None]:
            yield
            output = self.forward(memory_format, images)
            if self.training:
                loss = self._criterion(output, self._target)
                stepper.model.zero_grad(set_to_none=True)  # where training does it
                precision.backward(loss)
                precision.step(stepper.optimizer, precision.collect_gradients(), zero, None)
            yield

        return call

    def steps(self) -> dict[str, Callable[[], Iterator[None]]]:
        return {name: self.step(name) for name in FORMATS}


assert tuple(memory_format_name(resolve_memory_format(flag)) for flag in (False, True)) == FORMATS

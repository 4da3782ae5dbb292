"""The arms of a comparison as models side by side: shared batches, a stepper each, times and losses per step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from data.build import DataOptions, IndexOptions, LoaderOptions, build_mixer, open_indexes, open_sources, plan_loading
from data.feed import DeviceFeed, FeedOptions
from data.folder import FolderError
from data.loaders import HostBatches, fail_on_bad
from trainer import build, resolve
from trainer.cli import parse
from trainer.config import TrainConfig, pick
from trainer.distributed import Group
from trainer.dropout_order import watch_dropout
from trainer.errors import UserError
from trainer.exits import Session
from trainer.hardware import peak_memory_gib
from trainer.memory_format import resolve_memory_format
from trainer.metrics import RunningSums, means_of
from trainer.models import TrainingLoss, main_output
from trainer.profiling import StepProfiler
from trainer.snapshot import snapshot
from trainer.timing import Clock, StepTimer


@dataclasses.dataclass(frozen=True)
class SharedStep:
    """One optimizer step: its plan, and its uint8 batches on the host, (N, 3, H, W) and (N,)."""

    plan: Any
    batches: list[tuple[Tensor, Tensor]]


class SharedSteps:
    """The steps of epoch after epoch, loaded once for all arms. Closes the session, and with it the group."""

    def __init__(self, sampler: Any, host: HostBatches, session: Session) -> None:
        self.sampler = sampler
        self._host = host
        self._session = session
        self._steps = self._endless()

    def __next__(self) -> SharedStep:
        return next(self._steps)

    def __enter__(self) -> SharedSteps:
        return self

    def __exit__(self, *error: object) -> None:
        self._session.close("done", None, 0, agreed=False)

    def _endless(self) -> Iterator[SharedStep]:
        epoch = 0
        while True:
            self.sampler.start(epoch, 0)
            batches = iter(self._host)
            for plan in self.sampler.plans():
                yield SharedStep(plan, [next(batches) for _ in plan.batch_sizes])
            epoch += 1


class ArmInProcess:
    """One arm: its model, optimizer and feed, its own random numbers, and what its steps took."""

    def __init__(
        self, name: str, config: TrainConfig, group: Group, steps_in_epoch: int, global_batch: int, inference: bool
    ) -> None:
        built = build.build_stepper(config, group, new_weights=True, estimate_memory=config.cpu_heap == "auto")
        self.name = name
        self.config = config.replace(cpu_heap=built.heap["choice"])
        self.resolved = {key: _plain(value) for key, value in dataclasses.asdict(self.config).items()}
        self.stepper = built.stepper
        self.skipped_steps = 0
        self.ordered_dropout = watch_dropout(self.stepper.model)
        self._inference = inference
        self._group, self._clock = group, Clock(group.device)
        self._schedule, _ = build.build_schedule(config, global_batch, steps_in_epoch)
        self._profiler = StepProfiler(None, None, group.device)
        self._criterion = TrainingLoss()
        self._handed: list[tuple[Tensor, Tensor]] = []
        mixer = build_mixer(pick(LoaderOptions, config), 0)
        self._feed = iter(DeviceFeed(self._hand(), _feed_options(config, group, self.stepper), mixer))
        self._steps: list[tuple[StepTimer, RunningSums]] = []
        self._losses: list[float | None] = []
        self._random = _random_state(group.device)
        self._calibrated = False
        self.stepper.wrapped.train(not inference)
        self.stepper.start(0)

    def step(self, number: int, shared: SharedStep) -> None:
        """Step ``number`` (from 0) on these batches, timed; the host does not wait for the device."""
        self._handed = list(shared.batches)
        sums = RunningSums(self._group.device)
        with _random_numbers(self):
            if self._inference:
                timer = self._forward(sums)
            else:
                timer = StepTimer(self._clock, 0, 1, keep_steps=True)
                lr = self._schedule(number)
                taken = self.stepper.step(number, shared.plan, self._feed, lr, sums, timer, self._profiler)
                timer.step_done(taken)
        self._steps.append((timer, sums))

    def take(self) -> dict[str, list[float]]:
        """``seconds``, ``data_wait`` and ``images`` of each step since the last call. Waits for the device.

        Raises NonFiniteError where a training step was not finite and nothing may skip it."""
        health = self.stepper.health()
        if not self._inference:
            self.stepper.raise_if_non_finite(health)
        self.skipped_steps = health.skipped_steps
        found: dict[str, list[float]] = {"seconds": [], "data_wait": [], "images": []}
        for timer, sums in self._steps:
            for key, values in timer.per_step().items():
                found[key] += values
            loss = means_of(sums.take()).loss
            self._losses.append(loss if math.isfinite(loss) else None)
        self._steps = []
        return found

    def first_losses(self, count: int) -> list[float | None]:
        """Losses of the first steps from the initial weights, as far as they were taken."""
        return self._losses[:count]

    def peak_memory_gib(self) -> float:
        """Of the whole process: arms side by side have one peak."""
        return peak_memory_gib(self._group.device)

    @torch.no_grad()
    def _forward(self, sums: RunningSums) -> StepTimer:
        """One forward pass in eval mode, alone between the timer's marks."""
        images, target = next(self._feed)
        if not self._calibrated:
            self._calibrate(images)
        timer = StepTimer(self._clock, 0, 1, keep_steps=True)
        with self.stepper.precision.autocast():
            output = main_output(self.stepper.model(images))
        timer.step_done(len(target))
        sums.add(self._criterion(output, target), output, target)
        return timer

    def _calibrate(self, images: Tensor) -> None:
        """Take batch norm's running statistics from the first batch: with those of a new model the activations of a deep
        one grow or fade from layer to layer, and losses of such numbers say nothing."""
        norms = [
            module for module in self.stepper.model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)
        ]
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.momentum = 1.0
            norm.train()
        with self.stepper.precision.autocast():
            self.stepper.model(images)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
        self._calibrated = True

    def _hand(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield self._handed.pop(0)

    def swap_random(self) -> None:
        """Exchange the process's random state with this arm's."""
        mine, self._random = self._random, _random_state(self._group.device)
        torch.set_rng_state(mine[0])
        if mine[1] is not None:
            torch.cuda.set_rng_state(mine[1], self._group.device)


def build_arms(content: Mapping[str, Any]) -> tuple[SharedSteps, list[ArmInProcess], dict[str, Any]]:
    """The shared steps, the arms, and what they run on. Raises UserError."""
    names = [arm["name"] for arm in content["arms"]]
    requests = [parse([*content["common"], *arm["flags"]]).config for arm in content["arms"]]
    for name, config in zip(names, requests, strict=True):
        if config.channels_last == "auto" or config.compile:
            flag = "--compile" if config.compile else "--channels-last auto"
            raise UserError(f"arm {name}: {flag} needs a run of its own: drop --in-process or the flag")
    first, session = requests[0], Session()
    group, _ = build.open_group(first.device, first.deterministic, first.tf32, session)
    if group.active:
        raise UserError("--in-process is one process, and several were started: start it without torchrun")
    try:
        indexes = open_indexes(pick(IndexOptions, first))
    except FolderError as error:
        raise UserError(str(error)) from error
    classes = indexes and len(indexes[0].classes)
    configs = [resolve.resolve_config(config, group.device, group.ranks, classes)[0] for config in requests]
    source = open_sources(indexes, pick(DataOptions, configs[0]))[0]
    sampler, host = plan_loading(len(source), pick(LoaderOptions, configs[0]), (0, 1), group.device.type, fail_on_bad)
    steps = SharedSteps(sampler, HostBatches("train", source, sampler, host), session)
    if not sampler.steps_in_epoch():
        raise UserError(f"{len(source)} training images are too few for a step")
    inference = content["settings"]["mode"] == "inference"
    arms: list[ArmInProcess] = []
    for name, config in zip(names, configs, strict=True):
        if arms:  # one heap for the process: the first arm's
            config = config.replace(cpu_heap=arms[0].config.cpu_heap)
        arms.append(ArmInProcess(name, config, group, sampler.steps_in_epoch(), sampler.global_batch_size, inference))
    return steps, arms, snapshot(group.device, group.ranks)


def _feed_options(config: TrainConfig, group: Group, stepper: Any) -> FeedOptions:
    memory_format = resolve_memory_format(config.channels_last)
    return FeedOptions(group.device, config.mean or (), config.std or (), stepper.precision.input_dtype, memory_format)


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


@contextmanager
def _random_numbers(arm: ArmInProcess) -> Iterator[None]:
    """An arm draws from its own random numbers, as if it ran alone."""
    arm.swap_random()
    try:
        yield
    finally:
        arm.swap_random()


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

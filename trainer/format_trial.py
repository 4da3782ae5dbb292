"""``--channels-last auto``: rank 0 times training steps in both memory formats, on copies, and takes the faster one.

The copies start from the run's weights, train on a made-up batch of the run's shape and precision (the loader needs to
know the format before it opens) and are thrown away; random numbers are put back, so that the run after it is, bit for
bit, the one that the chosen format gives. What is timed is a whole optimizer step; what is left out: the loader,
torch.compile, and with several ranks the reduction of gradients and SyncBN's of statistics.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer.config import TrainConfig
from trainer.memory_format import resolve_memory_format
from trainer.metrics import RunningSums
from trainer.profiling import StepProfiler
from trainer.step import Stepper
from trainer.timing import Clock, StepTimer

MOST_SECONDS = 60.0
MOST_SHARE = 0.05  # of the run
WARMUP_ROUNDS = 2
MOST_ROUNDS = 20
# The least with which the smallest and the largest ratio hold the true median 95 times in 100.
LEAST_ROUNDS = 6
LEAST_GAIN = 1.01  # below it the layout of memory by chance is as good an explanation
_CONTIGUOUS = "--channels-last auto: false (contiguous)"


@dataclass(frozen=True)
class Limits:
    """``passes``: forward-backward passes over a batch in the whole run, None if unknown; ``turn``: those timed at once."""

    passes: int | None
    turn: int = 1

    def seconds(self, fastest: float) -> float:
        """What the trial may take, where the fastest pass so far took ``fastest`` seconds."""
        return MOST_SECONDS if self.passes is None else min(MOST_SECONDS, MOST_SHARE * self.passes * fastest)

    @property
    def too_few(self) -> bool:
        """Whether even the shortest trial is more than the run allows."""
        least = 2 * self.turn * (WARMUP_ROUNDS + LEAST_ROUNDS)
        return self.passes is not None and least > MOST_SHARE * self.passes


@dataclass(frozen=True)
class Plan:
    """One step of one batch."""

    images: int

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return (self.images,)


def expected_passes(config: TrainConfig, train_images: int | None, world_size: int) -> int | None:
    """Batches that this start of the run will train on, on one rank; None where the images are not counted."""
    if train_images is None:
        return None
    assert config.epochs is not None
    batches = math.ceil(train_images / (config.batch_size * world_size))
    if config.steps_per_epoch:
        batches = min(batches, config.steps_per_epoch * config.grad_accum_steps)
    epochs = min(config.epochs - config.start_epoch, config.stop_after_epochs or config.epochs)
    most = config.stop_after_steps * config.grad_accum_steps if config.stop_after_steps else batches * epochs
    return min(batches * epochs, most)


def choose_format(
    build: Callable[[bool], Stepper], config: TrainConfig, device: torch.device, passes: int | None
) -> tuple[bool, str]:
    """Time both formats within bounds; returns whether to take channels-last, and a line that says why.

    ``build``: a stepper of a world of one with a copy of the model, by whether it is channels-last. A model that
    fails in the trial trains contiguous: there its first step says what is wrong, if anything is.
    """
    limits = Limits(passes, 5 if device.type == "cuda" else 1)
    if limits.too_few:
        least = math.ceil(2 * limits.turn * (WARMUP_ROUNDS + LEAST_ROUNDS) / MOST_SHARE)
        return False, f"{_CONTIGUOUS}: a run of {passes} batches is too short to time both formats (from {least} on)"
    print(f"--channels-last auto: timing both memory formats, {MOST_SECONDS:g} s at the most", flush=True)

    def clock() -> float:
        _synchronize(device)
        return time.perf_counter()

    with nothing_left_behind(device):
        try:
            arms = {
                channels_last: made_up_step(build(channels_last), channels_last, config)
                for channels_last in (False, True)
            }
            start = clock()
            rounds = take_turns(arms, limits, clock)
            seconds = clock() - start
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            return False, f"{_CONTIGUOUS}: the trial of both formats failed ({reason})"
        finally:
            arms = {}  # the copies, before memory is given back
    return decide(rounds, config.batch_size, seconds, without=_left_out(config))


def take_turns(
    arms: dict[bool, Callable[[], None]], limits: Limits, clock: Callable[[], float]
) -> list[tuple[float, float]]:
    """Seconds of a pass (contiguous, channels-last), a pair a round, warm-up rounds left out.

    Every other round runs backwards. A turn is begun only where one as long as this arm's last still fits; the share of
    the run is reckoned from the fastest pass, so it is known once a pass ran at full speed.
    """
    start, fastest, last = clock(), math.inf, dict[bool, float]()
    rounds: list[tuple[float, float]] = []
    for index in range(WARMUP_ROUNDS + MOST_ROUNDS):
        found: dict[bool, float] = {}
        for arm in (False, True) if index % 2 == 0 else (True, False):
            began = clock()
            expected = last.get(arm, max(last.values(), default=0.0)) * limits.turn
            if last and began - start + expected > limits.seconds(fastest):
                return rounds
            for _ in range(limits.turn):
                arms[arm]()
            last[arm] = found[arm] = (clock() - began) / limits.turn
            fastest = min(fastest, found[arm])
        if index >= WARMUP_ROUNDS:
            rounds.append((found[False], found[True]))
    return rounds


def decide(rounds: list[tuple[float, float]], batch_size: int, seconds: float, without: str = "") -> tuple[bool, str]:
    """Channels-last where it is faster beyond noise, and the line with both speeds.

    Noise: the interval that holds the median of the rounds' ratios 95 times in 100 must lie above ``LEAST_GAIN``.
    """
    if len(rounds) < LEAST_ROUNDS:
        return False, (
            f"{_CONTIGUOUS}: after {seconds:.1f} s both formats had {len(rounds)} timed rounds, fewer than the "
            f"{LEAST_ROUNDS} it takes to tell them apart; --channels-last true or false decides without"
        )
    ratios = sorted(contiguous / channels_last for contiguous, channels_last in rounds)
    skipped = ends_left_out(len(ratios))
    low, high = ratios[skipped], ratios[-1 - skipped]
    chosen = low > LEAST_GAIN
    word = "true" if chosen else "false (contiguous)"
    why = "" if chosen or high < 1 / LEAST_GAIN else ", within noise"
    speeds = [batch_size / statistics.median(times) for times in zip(*rounds, strict=True)]
    return chosen, (
        f"--channels-last auto: {word}: channels_last {speeds[1]:.1f} img/s, contiguous {speeds[0]:.1f} img/s, "
        f"ratio {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}{why}; {len(rounds)} rounds in {seconds:.1f} s{without})"
    )


def ends_left_out(count: int) -> int:
    """How many of ``count`` sorted values to leave out at each end, so that the rest still holds the median 95 times
    in 100 (the order-statistic interval: a sign test turned round)."""
    outside, tail = 0, 1
    while 2 * tail / 2**count <= 0.05:
        outside += 1
        tail += math.comb(count, outside)
    return max(0, outside - 1)


def _left_out(config: TrainConfig) -> str:
    return "; timed without --compile" if config.compile else ""


def made_up_step(stepper: Stepper, channels_last: bool, config: TrainConfig) -> Callable[[], None]:
    """One optimizer step on a made-up batch of ``config``, at a learning rate of 0: what it takes, not what it learns."""
    device = stepper.precision.device
    images, target = _made_up_batch(config, stepper.precision.input_dtype, device)
    images = images.to(memory_format=resolve_memory_format(channels_last))
    sums, timer = RunningSums(device), StepTimer(Clock(device), 0, 1)
    profiler, count, plan = StepProfiler(None, None, device), itertools.count(), Plan(len(images))
    stepper.train_mode()
    stepper.start(0)

    def step() -> None:
        stepper.step(next(count), plan, iter([(images, target)]), 0.0, sums, timer, profiler)

    return step


def _made_up_batch(config: TrainConfig, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random pixels (N, 3, H, W), normalised as the run's are, and targets (N,)."""
    assert config.image_size is not None
    assert config.num_classes is not None
    generator = torch.Generator().manual_seed(0)
    shape = (config.batch_size, 3, config.image_size, config.image_size)
    pixels = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8).to(device)
    mean, std = (torch.tensor(value, device=device).view(3, 1, 1) for value in (config.mean, config.std))
    target = torch.randint(config.num_classes, shape[:1], generator=generator).to(device)
    return ((pixels.float() / 255 - mean) / std).to(dtype), target


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextmanager
def nothing_left_behind(device: torch.device) -> Iterator[None]:
    """Random numbers and the device's memory and its peak as they were before. A CPU's peak cannot be set back."""
    state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(numpy_state)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(device)

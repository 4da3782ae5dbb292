"""Step timer: warm-up left out, data wait apart, nothing of validation in it.

On CUDA a mark is an event recorded without waiting; times are read when the host waits for the
device anyway (logged steps). On a CPU a mark is ``perf_counter``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch


class Clock:
    """Marks points in a device's time line."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.name = "cuda events" if self._cuda else "perf_counter"

    def mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Time between two marks; on CUDA both must have been reached."""
        return start.elapsed_time(end) / 1000.0 if self._cuda else end - start


class StepTimer:
    """Times the steps of one epoch.

    ``waiting()`` before a batch is asked for, ``got_batch()`` once it is there, ``step_done(images)``
    after the optimizer. On CUDA the wait is the gap on the device's own time line between a step and
    its next batch being ready there (copied and normalised), not the time the host spent in the
    loader while the device was busy. ``keep_steps``: ``per_step`` will be asked for, so no mark is dropped.
    """

    def __init__(self, clock: Clock, warmup_steps: int, planned_steps: int, keep_steps: bool = False) -> None:
        self._clock = clock
        self.clock_name = clock.name
        self._keep = keep_steps
        self._kept: list[tuple[Any, int, list[tuple[Any, Any]]]] = []  # a step's end, its images, its waits
        self._waits: list[tuple[Any, Any]] = []
        self.planned_steps = planned_steps
        # Too few steps to leave the warm-up out: time all but the first.
        self.shortened = planned_steps < 2 * warmup_steps
        self.warmup_steps = max(0, min(1, planned_steps - 1)) if self.shortened else warmup_steps
        self.steps = 0
        self.images = 0
        self._steady_images = 0
        self._steady_wait = 0.0
        self._total_wait = 0.0
        self._pending: list[tuple[Any, Any, bool]] = []
        self._start = clock.mark()
        self._steady_start = self._start
        self._last = self._start
        self._line = (self._start, 0, 0)
        self._wait_start = self._start
        self._paused = self._paused_steady = self._paused_line = 0.0  # seconds; those of each come off its times

    def waiting(self) -> None:
        self._wait_start = self._clock.mark()

    def got_batch(self) -> None:
        ready = self._clock.mark()
        self._pending.append((self._wait_start, ready, self.steps >= self.warmup_steps))
        if self._keep:
            self._waits.append((self._wait_start, ready))

    def step_done(self, images: int) -> None:
        """``images``: how many the step took, over all ranks."""
        self.steps += 1
        self.images += images
        self._last = self._clock.mark()
        if self._keep:
            self._kept.append((self._last, images, self._waits))
            self._waits = []
        if self.steps == self.warmup_steps:
            self._steady_start = self._last
        elif self.steps > self.warmup_steps:
            self._steady_images += images

    def line(self) -> dict[str, float]:
        """Seconds a step and images a second, since the last call and as the running mean (steady
        steps only once the warm-up is over). Call where the host has waited for the device."""
        self._settle()
        start, steps, images = self._line
        seconds = self._clock.seconds(start, self._last) - self._paused_line
        self._paused_line = 0.0
        self._line = (self._last, self.steps, self.images)
        value_steps = max(1, self.steps - steps)
        mean_seconds, mean_steps, mean_images = self._steady() if self.steps > self.warmup_steps else self._whole()
        return {
            "step_s": seconds / value_steps,
            "images_per_sec": (self.images - images) / max(seconds, 1e-9),
            "mean_step_s": mean_seconds / max(1, mean_steps),
            "mean_images_per_sec": mean_images / max(mean_seconds, 1e-9),
            "data_wait_share": self.data_wait_share(),
        }

    def epoch(self) -> dict[str, float]:
        """Steady speed, whole-epoch speed and data-wait share of all steps so far."""
        self._settle()
        steady_seconds, steady_steps, steady_images = self._steady()
        whole_seconds, _, whole_images = self._whole()
        return {
            "images_per_sec": steady_images / max(steady_seconds, 1e-9) if steady_steps else 0.0,
            "step_s": steady_seconds / max(1, steady_steps),
            "steady_steps": steady_steps,
            "wall_images_per_sec": whole_images / max(whole_seconds, 1e-9),
            "data_wait_share": self.data_wait_share(),
        }

    def per_step(self) -> dict[str, list[float]]:
        """``seconds`` from step end to step end, ``data_wait`` (seconds of these) and ``images`` of every step
        so far, warm-up included; needs ``keep_steps``. Call where the host has waited for the device."""
        ends = [self._start, *(end for end, _, _ in self._kept)]
        return {
            "seconds": [self._clock.seconds(start, end) for start, end in zip(ends, ends[1:], strict=False)],
            "data_wait": [sum(self._clock.seconds(*wait) for wait in waits) for _, _, waits in self._kept],
            "images": [images for _, images, _ in self._kept],
        }

    def compute_seconds(self) -> float:
        """Seconds of all steps so far less their waits for data. Call where the host has waited for the device."""
        self._settle()
        return self._whole()[0] - self._total_wait

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside, between two steps, counts in no time. Waits for the device at its end."""
        start = self._clock.mark()
        yield
        end = self._clock.mark()
        if isinstance(end, torch.cuda.Event):
            end.synchronize()
        seconds = self._clock.seconds(start, end)
        self._paused_line += seconds
        self._paused += seconds
        if self.steps >= self.warmup_steps:
            self._paused_steady += seconds

    def data_wait_share(self) -> float:
        """Share of the steady time spent waiting for data (of all time before there is any)."""
        if self.steps > self.warmup_steps:
            return min(1.0, self._steady_wait / max(self._steady()[0], 1e-9))
        return min(1.0, self._total_wait / max(self._whole()[0], 1e-9))

    def _steady(self) -> tuple[float, int, int]:
        if self.steps <= self.warmup_steps:
            return 0.0, 0, 0
        seconds = self._clock.seconds(self._steady_start, self._last) - self._paused_steady
        return seconds, self.steps - self.warmup_steps, self._steady_images

    def _whole(self) -> tuple[float, int, int]:
        return self._clock.seconds(self._start, self._last) - self._paused, self.steps, self.images

    def _settle(self) -> None:
        for start, end, steady in self._pending:
            seconds = self._clock.seconds(start, end)
            self._total_wait += seconds
            if steady:
                self._steady_wait += seconds
        self._pending.clear()

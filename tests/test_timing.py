"""The step timer against a clock that tests turn by hand."""

from __future__ import annotations

import pytest
import torch

from trainer.timing import Clock, StepTimer


class FakeClock(Clock):
    """Seconds pass only when told."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.now = 100.0

    def mark(self) -> float:
        return self.now


class Epoch:
    """A timer whose steps take what they are told."""

    def __init__(self, warmup_steps: int, planned_steps: int, images: int = 8) -> None:
        self.clock = FakeClock()
        self.images = images
        self.timer = StepTimer(self.clock, warmup_steps, planned_steps)

    def step(self, wait: float = 0.0, compute: float = 1.0, batches: int = 1) -> None:
        for _ in range(batches):
            self.timer.waiting()
            self.clock.now += wait / batches
            self.timer.got_batch()
            self.clock.now += compute / batches
        self.timer.step_done(self.images)


def test_a_slow_first_step_leaves_the_steady_speed_unmoved():
    """R90; the speed of the whole epoch holds it."""
    epoch = Epoch(5, 20)
    for step in range(20):
        epoch.step(compute=2.0 if step == 0 else 0.1)
    found = epoch.timer.epoch()
    assert found["images_per_sec"] == pytest.approx(80)
    assert found["step_s"] == pytest.approx(0.1)
    assert found["steady_steps"] == 15
    assert found["wall_images_per_sec"] == pytest.approx(20 * 8 / 3.9)


@pytest.mark.parametrize(
    ("warmup", "planned", "left_out", "shortened"),
    [
        (5, 10, 5, False),
        (5, 9, 1, True),
        (5, 2, 1, True),
        (5, 1, 0, True),
        (0, 3, 0, False),
        (1, 2, 1, False),
        (5, 0, 0, True),
    ],
)
def test_too_few_steps_time_all_but_the_first(warmup: int, planned: int, left_out: int, shortened: bool):
    epoch = Epoch(warmup, planned)
    assert epoch.timer.shortened is shortened
    assert epoch.timer.warmup_steps == left_out
    for step in range(planned):
        epoch.step(compute=5.0 if step < left_out else 0.5)
    found = epoch.timer.epoch()
    assert found["steady_steps"] == planned - left_out
    assert found["images_per_sec"] == pytest.approx(16 if planned else 0)


def test_data_wait_is_its_share_of_the_steady_time():
    """R91; the wait for the first batch (workers starting) is left out with the warm-up."""
    epoch = Epoch(2, 6)
    for step in range(6):
        epoch.step(wait=9.0 if step == 0 else 0.3, compute=0.7)
    assert epoch.timer.epoch()["data_wait_share"] == pytest.approx(0.3)


def test_data_wait_before_the_warmup_is_over_is_that_of_all_steps():
    epoch = Epoch(5, 20)
    epoch.step(wait=0.5, compute=0.5)
    assert epoch.timer.line()["data_wait_share"] == pytest.approx(0.5)


def test_waits_of_accumulated_batches_add_up():
    epoch = Epoch(1, 4)
    for _ in range(4):
        epoch.step(wait=0.4, compute=0.6, batches=4)
    assert epoch.timer.epoch()["data_wait_share"] == pytest.approx(0.4)
    assert epoch.timer.epoch()["images_per_sec"] == pytest.approx(8)


def test_a_line_has_the_value_since_the_last_and_the_running_mean():
    epoch = Epoch(2, 10)
    epoch.step(compute=4.0)
    line = epoch.timer.line()
    assert (line["step_s"], line["mean_step_s"]) == (pytest.approx(4), pytest.approx(4))
    assert (line["images_per_sec"], line["mean_images_per_sec"]) == (pytest.approx(2), pytest.approx(2))
    epoch.step(compute=2.0)
    line = epoch.timer.line()
    assert (line["step_s"], line["mean_step_s"]) == (pytest.approx(2), pytest.approx(3))
    for compute in (1.0, 0.5, 0.5, 0.5):
        epoch.step(compute=compute)
    line = epoch.timer.line()
    # The warm-up is over: the mean is that of the steady steps, 2.5 s for 4.
    assert (line["step_s"], line["mean_step_s"]) == (pytest.approx(0.625), pytest.approx(0.625))
    for compute in (0.25, 0.25):
        epoch.step(compute=compute)
    line = epoch.timer.line()
    assert (line["step_s"], line["mean_step_s"]) == (pytest.approx(0.25), pytest.approx(0.5))
    assert (line["images_per_sec"], line["mean_images_per_sec"]) == (pytest.approx(32), pytest.approx(16))


def test_what_happens_between_steps_counts_until_the_last_step():
    """Time after the last step, such as validation, is in no speed."""
    epoch = Epoch(0, 2)
    epoch.step()
    epoch.step()
    epoch.clock.now += 100
    assert epoch.timer.epoch()["wall_images_per_sec"] == pytest.approx(8)
    assert epoch.timer.line()["step_s"] == pytest.approx(1)


def test_steps_of_other_sizes_count_by_their_images():
    epoch = Epoch(1, 3)
    epoch.step()
    epoch.step()
    epoch.images = 2
    epoch.step()
    assert epoch.timer.images == 18
    assert epoch.timer.epoch()["images_per_sec"] == pytest.approx(5)


def test_an_epoch_without_steps_has_no_speed():
    found = Epoch(5, 0).timer.epoch()
    assert (found["images_per_sec"], found["wall_images_per_sec"], found["data_wait_share"]) == (0, 0, 0)


def test_the_real_clock_runs_forward():
    clock = Clock(torch.device("cpu"))
    start = clock.mark()
    assert 0 <= clock.seconds(start, clock.mark()) < 5


@pytest.mark.parametrize("warmup", [5, 1, 0])
def test_what_runs_in_a_pause_counts_in_no_time(warmup: int):
    epoch = Epoch(warmup, 20)
    epoch.step(wait=0.5, compute=1.0)
    assert epoch.timer.compute_seconds() == pytest.approx(1.0)
    assert epoch.timer.line()["step_s"] == pytest.approx(1.5)
    with epoch.timer.paused():
        epoch.clock.now += 100.0
    epoch.step(wait=0.5, compute=1.0)
    assert epoch.timer.line()["step_s"] == pytest.approx(1.5)
    for _ in range(8):
        epoch.step(wait=0.5, compute=1.0)
    found = epoch.timer.epoch()
    assert found["wall_images_per_sec"] == pytest.approx(10 * 8 / 15)
    assert found["step_s"] == pytest.approx(1.5)
    assert found["images_per_sec"] == pytest.approx(8 / 1.5)
    assert found["data_wait_share"] == pytest.approx(1 / 3)
    assert found["steady_steps"] == 10 - warmup
    assert epoch.timer.line()["step_s"] == pytest.approx(1.5)

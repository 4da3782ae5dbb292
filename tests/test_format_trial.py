"""The trial behind --channels-last auto: its bounds under a fake clock, its choice from planted times."""

from __future__ import annotations

import random

import pytest
import torch

from trainer import format_trial
from trainer.config import TrainConfig
from trainer.format_trial import Limits, decide, expected_passes, take_turns


class FakeClock:
    """Goes on by what a pass of each format takes, the first ``slow`` passes of each ten times that."""

    def __init__(self, contiguous: float, channels_last: float, slow: int = 0) -> None:
        self.now = 0.0
        self.passes = {False: 0, True: 0}
        self.order: list[bool] = []
        self._seconds = {False: contiguous, True: channels_last}
        self._slow = slow

    def __call__(self) -> float:
        return self.now

    def arm(self, channels_last: bool) -> None:
        self.passes[channels_last] += 1
        self.order.append(channels_last)
        self.now += self._seconds[channels_last] * (10 if self.passes[channels_last] <= self._slow else 1)

    def turns(self, limits: Limits) -> list[tuple[float, float]]:
        return take_turns({arm: lambda arm=arm: self.arm(arm) for arm in (False, True)}, limits, self)


def test_a_long_run_gets_all_rounds_in_turn():
    clock = FakeClock(0.1, 0.05)
    rounds = clock.turns(Limits(10**6))
    assert rounds == [(pytest.approx(0.1), pytest.approx(0.05))] * format_trial.MOST_ROUNDS
    assert clock.order[:8] == [False, True, True, False] * 2
    assert clock.passes[True] == format_trial.MOST_ROUNDS + format_trial.WARMUP_ROUNDS


def test_warm_up_is_dropped():
    rounds = FakeClock(0.1, 0.05, slow=2).turns(Limits(10**6))
    assert {round(value, 6) for pair in rounds for value in pair} == {0.1, 0.05}


@pytest.mark.parametrize(("seconds", "passes"), [(2.0, None), (5.0, 10**6), (0.1, 400), (0.1, 500), (2.0, 100)])
def test_no_more_than_five_per_cent_of_the_run_or_sixty_seconds(seconds: float, passes: int | None):
    clock = FakeClock(seconds, seconds)
    clock.turns(Limits(passes))
    bound = 60.0 if passes is None else min(60.0, 0.05 * passes * seconds)
    assert bound - 2 * seconds < clock.now <= bound + 1e-9


def test_slow_first_passes_count_too():
    clock = FakeClock(1.0, 1.0, slow=1)
    clock.turns(Limits(10**6))
    assert clock.now <= 60
    clock = FakeClock(1.0, 1.0, slow=1)
    clock.turns(Limits(400))
    assert clock.order == [False, True, True], "the first pass at full speed shows that 20 s are the bound"


def test_a_pass_longer_than_the_bound_is_the_only_one():
    clock = FakeClock(100.0, 100.0)
    assert clock.turns(Limits(10**6)) == []
    assert clock.order == [False]


def test_several_passes_a_turn():
    clock = FakeClock(0.1, 0.05)
    rounds = clock.turns(Limits(10**6, turn=5))
    assert rounds[0] == (pytest.approx(0.1), pytest.approx(0.05))
    assert clock.order[:15] == [False] * 5 + [True] * 10


def test_a_run_too_short_for_the_least_trial_has_none():
    assert Limits(319).too_few
    assert not Limits(320).too_few
    assert Limits(1599, turn=5).too_few
    assert not Limits(None).too_few


LENGTHS = [
    ({"batch_size": 10, "epochs": 3}, 100, 1, 30),
    ({"batch_size": 10, "epochs": 3}, 101, 1, 33),
    ({"batch_size": 10, "epochs": 3}, 100, 2, 15),
    ({"batch_size": 10, "epochs": 3, "steps_per_epoch": 4}, 100, 1, 12),
    ({"batch_size": 10, "epochs": 3, "steps_per_epoch": 4, "grad_accum_steps": 2}, 100, 1, 24),
    ({"batch_size": 10, "epochs": 3, "stop_after_epochs": 1}, 100, 1, 10),
    ({"batch_size": 10, "epochs": 3, "stop_after_steps": 7}, 100, 1, 7),
    ({"batch_size": 10, "epochs": 3, "start_epoch": 2}, 100, 1, 10),
    ({"batch_size": 10, "epochs": 3}, None, 1, None),
]


@pytest.mark.parametrize(("settings", "images", "world_size", "passes"), LENGTHS)
def test_expected_length(settings: dict, images: int | None, world_size: int, passes: int | None):
    assert expected_passes(TrainConfig(**settings), images, world_size) == passes


def planted(ratios: list[float]) -> list[tuple[float, float]]:
    return [(ratio, 1.0) for ratio in ratios]


CHOICES = [
    ([1.3] * 20, True, "true: channels_last 8.0 img/s, contiguous 6.2 img/s, ratio 1.300 (1.300 to 1.300; 20 rounds"),
    (
        [0.8] * 20,
        False,
        "false (contiguous): channels_last 8.0 img/s, contiguous 10.0 img/s, ratio 0.800 (0.800 to 0.800;",
    ),
    (
        [1.0] * 20,
        False,
        "false (contiguous): channels_last 8.0 img/s, contiguous 8.0 img/s, ratio 1.000 (1.000 to 1.000, within noise;",
    ),
    ([1.005] * 20, False, "within noise"),
    ([1.2, 0.8] * 10, False, "within noise"),
    ([1.2] * 15 + [0.1] * 5, True, "true"),  # 5 of 20 may lie anywhere: a busy machine
    ([1.2] * 14 + [0.9] * 6, False, "within noise"),
    ([1.1, 1.2, 1.1, 1.2, 1.1, 1.2], True, "true"),
    ([1.1, 1.2, 1.1, 1.2, 1.1, 0.99], False, "within noise"),
    ([2.0] * 5, False, "5 timed rounds, fewer than the 6"),
    ([], False, "0 timed rounds"),
]


@pytest.mark.parametrize(("ratios", "chosen", "words"), CHOICES)
def test_the_faster_one_unless_within_noise(ratios: list[float], chosen: bool, words: str):
    found, line = decide(planted(ratios), 8, 12.34)
    assert found is chosen
    assert line.startswith("--channels-last auto: ")
    assert words in line
    assert "\n" not in line


def test_equal_formats_are_rarely_told_apart():
    """20 rounds of the same speed under 5 % of noise, a thousand times."""
    draw = random.Random(0)
    chosen = [decide(planted([draw.gauss(1, 0.05) for _ in range(20)]), 8, 1.0)[0] for _ in range(1000)]
    assert sum(chosen) <= 25
    slower = [decide(planted([draw.gauss(1.1, 0.05) for _ in range(20)]), 8, 1.0)[0] for _ in range(1000)]
    assert sum(slower) >= 950


def test_compile_is_said_to_be_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(format_trial, "made_up_step", lambda *arguments: None)
    monkeypatch.setattr(format_trial, "take_turns", lambda *arguments: planted([1.5] * 20))
    for compiled in (False, True):
        config = TrainConfig(compile=compiled)
        chosen, line = format_trial.choose_format(lambda channels_last: None, config, torch.device("cpu"), None)
        assert chosen
        assert line.count("timed without --compile") == compiled
    assert capsys.readouterr().out.count("at the most") == 2

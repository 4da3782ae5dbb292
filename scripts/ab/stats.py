"""Ratio of two arms over rounds, with a 95 % interval that keeps its 5 %.

A round's figure is the throughput at the median steady step time; the ratio is taken round by round, so that a
machine that grows slower favours neither arm, and pooled as a geometric mean (the mean of logarithms).

The interval is a t interval with a bootstrap standard error: rounds are drawn with replacement and steps within
them too, the standard deviation of the pooled ratio over the draws is taken times sqrt(n / (n - 1)), since drawing
from n values has a variance too small by (n - 1) / n, and times Student's t with n - 1 degrees of freedom. A plain
percentile interval is too narrow for 2 to 5 rounds: it can never leave the range of what was seen (T. Hesterberg, "What
Teachers Should Know About the Bootstrap", The American Statistician 69, 2015, sections 3.2 and 4). Whether it holds is
simulated in tests/test_compare_stats.py on recorded step times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DRAWS = 2000
SEED = 20150401
# Student's t: quantiles 0.975 and 0.8 for 1, 2, ... degrees of freedom, and beyond.
_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
         2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip
_T800 = (1.376, 1.061, 0.978, 0.941, 0.920, 0.906, 0.896, 0.889, 0.883, 0.879, 0.876, 0.873, 0.870, 0.868, 0.866, 0.865,
         0.863, 0.862, 0.861, 0.860, 0.859, 0.858, 0.858, 0.857, 0.856, 0.856, 0.855, 0.855, 0.854, 0.854)  # fmt: skip


@dataclass(frozen=True)
class RoundOf:
    """Steady steps of one run: ``seconds`` a step, and ``images`` a step."""

    seconds: Sequence[float]
    images: float

    @property
    def rate(self) -> float:
        """Images a second at the median step time."""
        return self.images / float(np.median(self.seconds))


@dataclass(frozen=True)
class Ratio:
    """Throughput of the candidate over the baseline's. ``low`` and ``high`` bound it with 95 % confidence (infinitely
    wide for one round); ``spread``: standard deviation of its logarithm over rounds; ``detectable``: the relative
    difference that such a run would find four times in five."""

    value: float
    low: float
    high: float
    by_round: tuple[float, ...]
    spread: float
    detectable: float


def t975(freedom: int) -> float:
    """The factor of a 95 % interval with so many degrees of freedom."""
    return _T975[min(freedom, len(_T975)) - 1]


def compare(baseline: Sequence[RoundOf], candidate: Sequence[RoundOf], draws: int = DRAWS) -> Ratio:
    """The ratio of rounds paired in order; at least one of each."""
    logs = np.array([math.log(c.rate / b.rate) for b, c in zip(baseline, candidate, strict=True)])
    rounds, value = len(logs), float(logs.mean())
    by_round = tuple(float(ratio) for ratio in np.exp(logs))
    if rounds < 2:
        return Ratio(math.exp(value), 0.0, math.inf, by_round, math.nan, math.inf)
    generator = np.random.Generator(np.random.PCG64(SEED))
    drawn = np.zeros((draws, rounds))
    picks = generator.integers(rounds, size=(draws, rounds))
    for sign, arm in ((1, candidate), (-1, baseline)):
        for index, one in enumerate(arm):
            where = picks == index
            drawn[where] += sign * _resampled_log_rates(one, int(where.sum()), generator)
    error = float(drawn.mean(axis=1).std()) * math.sqrt(rounds / (rounds - 1))
    half = t975(rounds - 1) * error
    detectable = math.expm1((t975(rounds - 1) + _T800[min(rounds - 1, len(_T800)) - 1]) * error)
    return Ratio(
        math.exp(value), math.exp(value - half), math.exp(value + half), by_round, float(logs.std(ddof=1)), detectable
    )


def _resampled_log_rates(one: RoundOf, count: int, generator: np.random.Generator) -> np.ndarray:
    seconds = np.asarray(one.seconds, dtype=float)
    picks = generator.integers(len(seconds), size=(count, len(seconds)))
    return math.log(one.images) - np.log(np.median(seconds[picks], axis=1))

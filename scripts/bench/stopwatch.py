"""Times parts of a call, format against format: medians of many calls, rounds in turns, and the spread of their factors."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import common
import torch

from trainer.format_trial import LEAST_ROUNDS, ends_left_out

# A generator that yields where a timed part begins and where it ends: what lies between two parts is not timed.
Call = Callable[[], Iterator[None]]
MOST_CALLS = 1000


def now(device: torch.device) -> float:
    """Seconds, once the device has done all it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()


def time_call(call: Call, device: torch.device) -> list[float]:
    """Seconds of each part of one call."""
    stamps = [now(device) for _ in call()]
    assert len(stamps) % 2 == 0, "every part of a call has a beginning and an end"
    return [end - begin for begin, end in zip(stamps[::2], stamps[1::2], strict=True)]


@dataclass
class Times:
    """Seconds a round of each part, by arm; filled by ``measure``."""

    parts: dict[str, list[list[float]]] = field(default_factory=dict)

    def totals(self, arm: str) -> list[float]:
        """Seconds a round, all parts together."""
        return [sum(parts) for parts in self.parts[arm]]

    def median(self, arm: str, part: int | None = None) -> float:
        """Median seconds of one part, or of all together."""
        return statistics.median(self.totals(arm) if part is None else [parts[part] for parts in self.parts[arm]])

    def factor(self, candidate: str, baseline: str) -> Factor:
        pairs = zip(self.totals(candidate), self.totals(baseline), strict=True)
        return Factor([one / max(other, 1e-12) for one, other in pairs])

    def difference(self, candidate: str, baseline: str) -> float:
        """Median over the rounds of the seconds the candidate takes more: its sign is that of a clear factor."""
        pairs = zip(self.totals(candidate), self.totals(baseline), strict=True)
        return statistics.median(one - other for one, other in pairs)


@dataclass(frozen=True)
class Factor:
    """Time of one arm over that of another, a value a round: both arms of a round met the same state of the machine."""

    rounds: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> tuple[float, float]:
        """Between the lowest and the highest round, of nine and more without those that the order-statistic interval
        of the median leaves out at 95 %: where there is no difference, at most one case in forty lies wholly above 1."""
        ordered, outside = sorted(self.rounds), ends_left_out(len(self.rounds))
        return ordered[outside], ordered[-1 - outside]

    @property
    def verdict(self) -> str:
        """``slower`` or ``faster`` where the whole spread says so, else ``unclear``; under six rounds nothing is clear:
        five agree by chance once in sixteen."""
        if len(self.rounds) < LEAST_ROUNDS:
            return "unclear"
        low, high = self.spread
        return "slower" if low > 1 else "faster" if high < 1 else "unclear"


def measure(
    arms: Mapping[str, Call], device: torch.device, rounds: int, warmup_rounds: int, min_seconds: float
) -> Times:
    """Time the arms in turns. A round's value is the median of as many calls as the fastest arm needs for ``min_seconds``."""
    for call in arms.values():  # once for lazy set-up: kernels are chosen, memory is mapped
        time_call(call, device)
    fastest = min(sum(time_call(call, device)) for call in arms.values())
    calls = min(MOST_CALLS, max(1, math.ceil(min_seconds / max(fastest, 1e-7))))
    found: dict[str, list[list[float]]] = {arm: [] for arm in arms}

    def run(arm: str) -> float:
        times = [time_call(arms[arm], device) for _ in range(calls)]
        found[arm].append([statistics.median(part) for part in zip(*times, strict=True)])
        return sum(found[arm][-1])

    common.interleave({arm: lambda arm=arm: run(arm) for arm in arms}, rounds, warmup_rounds, quiet=True)  # type: ignore[misc]
    return Times({arm: values[warmup_rounds:] for arm, values in found.items()})

"""One sentence an arm: what the rounds allow to say about it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ab.process import steady
from ab.results import Results, compare_results
from ab.stats import Ratio, RoundOf, compare

INPUT_BOUND = 0.30  # share of the steady time spent waiting for data
# Standard deviation over rounds of the ratio's logarithm, about 10 %. Enough rounds say something all the same: where they
# bring the interval within as much of its middle.
UNSTABLE = 0.10
WIDE = 0.25  # an interval that holds 1 and reaches further than this above its middle says nothing


@dataclass(frozen=True)
class Verdict:
    """``kind``: faster, slower, no difference, input-bound, unstable, different results."""

    arm: str
    baseline: str
    kind: str
    sentence: str
    ratio: Ratio
    results: Results

    def record(self) -> dict[str, Any]:
        return asdict(self)


def judge(content: Mapping[str, Any]) -> list[Verdict]:
    """Every arm against the first, over the rounds that both have ended. Raises RunError."""
    runs = done_by_arm(content)
    names = [arm["name"] for arm in content["arms"]]
    found = []
    for name in names[1:]:
        shared = sorted(runs[names[0]].keys() & runs[name].keys())
        if shared:
            pairs = [runs[names[0]][index] for index in shared], [runs[name][index] for index in shared]
            found.append(_judge(names[0], name, *pairs, content["settings"]))
    return found


def done_by_arm(content: Mapping[str, Any]) -> dict[str, dict[int, dict[str, Any]]]:
    """Arm to round to run, of those that ended well."""
    runs: dict[str, dict[int, dict[str, Any]]] = {arm["name"]: {} for arm in content["arms"]}
    for run in content["runs"]:
        if run["exit_code"] == 0:
            runs[run["arm"]][run["round"]] = run
    return runs


def round_of(run: dict[str, Any]) -> RoundOf:
    steps = steady(run)
    return RoundOf(steps["seconds"], steps["images"][0])


def data_wait(runs: Sequence[dict[str, Any]]) -> float:
    """Median over runs of the share of the steady time spent waiting for data."""
    shares = [sum(steps["data_wait"]) / max(sum(steps["seconds"]), 1e-12) for steps in map(steady, runs)]
    return statistics.median(shares)


def _judge(
    baseline: str, name: str, first: list[dict[str, Any]], second: list[dict[str, Any]], settings: Mapping[str, Any]
) -> Verdict:
    ratio = compare([round_of(run) for run in first], [round_of(run) for run in second])
    results = compare_results(first, second, settings["nproc_per_node"], settings.get("mode") != "inference")
    waits = {baseline: data_wait(first), name: data_wait(second)}
    kind, sentence = _speak(baseline, name, ratio, results, waits)
    return Verdict(name, baseline, kind, sentence, ratio, results)


def _speak(baseline: str, name: str, ratio: Ratio, results: Results, waits: Mapping[str, float]) -> tuple[str, str]:
    rounds = len(ratio.by_round)
    if results.kind == "different":
        return "different results", f"{name}: different results, so its speed means nothing: {results.text}"
    slowest = max(waits, key=lambda arm: waits[arm])
    if waits[slowest] > INPUT_BOUND:
        return "input-bound", (
            f"{name}: input-bound: {slowest} waits for data {100 * waits[slowest]:.0f} % of the time (above {100 * INPUT_BOUND:.0f} %), "
            "so this says nothing about compute; more --workers, a resized folder or made-up images would"
        )
    if rounds < 2:
        return (
            "unstable",
            f"{name}: {ratio.value:.2f} times {baseline}'s speed in a single round, which has no interval: run more rounds",
        )
    if ratio.spread > UNSTABLE and ratio.high / ratio.value > 1 + UNSTABLE:
        return "unstable", (
            f"{name}: unstable: the ratio to {baseline} varies by {100 * ratio.spread:.1f} % from round to round (above "
            f"{100 * UNSTABLE:.0f} %) and lies anywhere from {ratio.low:.3f} to {ratio.high:.3f}: quieten the machine or run more "
            f"rounds than {rounds}"
        )
    if ratio.low > 1:
        return "faster", f"{name}: faster than {baseline} by {_times(ratio.value, ratio.low, ratio.high)}"
    if ratio.high < 1:
        return "slower", f"{name}: slower than {baseline} by {_times(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)}"
    if ratio.high / ratio.value > 1 + WIDE:
        return "unstable", (
            f"{name}: unstable: the interval of the ratio to {baseline} ({ratio.low:.3f} to {ratio.high:.3f}) holds 1 and reaches "
            f"further than {100 * WIDE:.0f} %, so it says nothing: run more rounds than {rounds}"
        )
    return "no difference", (
        f"{name}: no difference found to {baseline} ({ratio.value:.3f}, 95 % interval {ratio.low:.3f} to {ratio.high:.3f}); "
        f"a difference of {100 * ratio.detectable:.1f} % would have been found 4 times in 5"
    )


def _times(value: float, low: float, high: float) -> str:
    return f"{value:.3f} x (95 % interval {low:.3f} to {high:.3f})"

"""The pictures of a comparison, as PNG files. The only importer of matplotlib."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

from ab.process import steady  # noqa: E402
from ab.verdict import Verdict, data_wait, done_by_arm, round_of  # noqa: E402

Runs = Mapping[str, Mapping[int, dict[str, Any]]]
# Distinguishable with colour-blind eyes (Okabe and Ito's palette).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8a8a00")


def draw_all(content: Mapping[str, Any], verdicts: Sequence[Verdict], folder: Path) -> list[tuple[str, Path]]:
    """Captions and files; a picture without data is left out."""
    runs = {name: found for name, found in done_by_arm(content).items() if found}
    if not runs:
        return []
    drawn = [
        _save(
            "speed", "Speed in each round; bars hold the middle half of its steps", folder, lambda a: _speed(a, runs)
        ),
        _save("step_times", "Step times of all rounds (s), warm-up left out", folder, lambda a: _times(a, runs)),
        _save("losses", "Loss of the first steps, all rounds on top of each other", folder, lambda a: _losses(a, runs)),
        _save(
            "wait_and_memory",
            "Data wait (share of the time) and peak memory (GiB)",
            folder,
            lambda a: _bars(a, runs),
            2,
        ),
    ]
    judged = [verdict for verdict in verdicts if len(verdict.ratio.by_round) > 1]
    if judged:
        drawn.insert(0, _save("ratio", f"Speed relative to {judged[0].baseline}; line: 95 % interval, dots: rounds",
                              folder, lambda a: _ratios(a, judged)))  # fmt: skip
    return drawn


def _save(name: str, caption: str, folder: Path, draw: Callable[[Any], None], columns: int = 1) -> tuple[str, Path]:
    figure, axes = pyplot.subplots(1, columns, figsize=(7.2, 3.4), dpi=150, layout="constrained")
    for one in axes if columns > 1 else [axes]:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.25)
    draw(axes)
    path = folder / f"{name}.png"
    figure.savefig(path)
    pyplot.close(figure)
    return caption, path


def _ratios(axes: Any, verdicts: Sequence[Verdict]) -> None:
    for place, verdict in enumerate(reversed(verdicts)):
        ratio, colour = verdict.ratio, COLOURS[(len(verdicts) - place) % len(COLOURS)]
        axes.plot([ratio.low, ratio.high], [place, place], color=colour, linewidth=3, solid_capstyle="round")
        axes.plot([ratio.value], [place], "D", color=colour, markersize=8)
        axes.plot(ratio.by_round, [place + 0.12] * len(ratio.by_round), "o", color=colour, alpha=0.5, markersize=4)
    axes.axvline(1.0, color="#555555", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(verdicts)), [verdict.arm for verdict in reversed(verdicts)])
    axes.set_ylim(-0.6, len(verdicts) - 0.4)
    axes.set_xlabel("ratio of throughput")


def _speed(axes: Any, runs: Runs) -> None:
    for place, (name, found) in enumerate(runs.items()):
        rounds, shift = sorted(found), 0.06 * (place - (len(runs) - 1) / 2)
        rates = [round_of(found[index]).rate for index in rounds]
        lows, highs = [], []
        for index, rate in zip(rounds, rates, strict=True):
            steps = steady(found[index])
            fast, slow = _middle_half(steps["seconds"])
            lows.append(max(0.0, rate - steps["images"][0] / slow))
            highs.append(max(0.0, steps["images"][0] / fast - rate))
        axes.errorbar([index + 1 + shift for index in rounds], rates, yerr=[lows, highs], fmt="o-", capsize=3, label=name,
                      color=COLOURS[place % len(COLOURS)])  # fmt: skip
    axes.set_xticks(sorted({index + 1 for found in runs.values() for index in found}))
    axes.set_xlabel("round")
    axes.set_ylabel("images a second")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _middle_half(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _times(axes: Any, runs: Runs) -> None:
    boxes = [[second for run in found.values() for second in steady(run)["seconds"]] for found in runs.values()]
    drawn = axes.boxplot(boxes, orientation="horizontal", patch_artist=True, widths=0.5, flierprops={"markersize": 3})
    for place, box in enumerate(drawn["boxes"]):
        box.set(facecolor=COLOURS[place % len(COLOURS)], alpha=0.5)
    axes.set_yticks(range(1, len(runs) + 1), list(runs))
    axes.invert_yaxis()
    axes.set_xlabel("seconds a step")
    axes.set_xlim(left=0)


def _losses(axes: Any, runs: Runs) -> None:
    for place, (name, found) in enumerate(runs.items()):
        for index, run in enumerate(found.values()):
            losses = [float("nan") if loss is None else loss for loss in run["losses"]]
            axes.plot(range(1, len(losses) + 1), losses, color=COLOURS[place % len(COLOURS)], alpha=0.7,
                      linestyle=("-", "--", ":", "-.")[place % 4], label=None if index else name)  # fmt: skip
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    axes.legend(frameon=False)


def _bars(axes: Any, runs: Runs) -> None:
    colours = [COLOURS[place % len(COLOURS)] for place in range(len(runs))]
    waits = [data_wait(list(found.values())) for found in runs.values()]
    memory = [statistics.median(run["peak_memory_gib"] for run in found.values()) for found in runs.values()]
    for one, values, label in ((axes[0], waits, "data wait"), (axes[1], memory, "peak memory, GiB")):
        one.barh(list(runs), values, color=colours, alpha=0.7)
        one.invert_yaxis()
        one.set_xlabel(label)
    axes[0].set_xlim(0, 1)
    axes[1].set_yticks([])

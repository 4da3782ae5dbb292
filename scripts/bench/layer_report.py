"""What a per-layer profile says: the table of slower modules, totals, shares of the step, a bar chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import stopwatch
from both_formats import CHANNELS_LAST, CONTIGUOUS, FORMATS
from layer_arms import LayerResult

from trainer.errors import UserError

MOST_BARS = 30


def slower(results: Sequence[LayerResult]) -> list[LayerResult]:
    """Beyond their spread and met channels-last in the model; worst loss of a step first."""
    found = [result for result in results if result.verdict == "slower" and result.case.met]
    return sorted(found, key=lambda result: -result.loss)


def faster(results: Sequence[LayerResult]) -> list[LayerResult]:
    found = [result for result in results if result.verdict == "faster" and result.case.met]
    return sorted(found, key=lambda result: result.loss)


def summarize(results: Sequence[LayerResult], step: stopwatch.Times) -> dict[str, Any]:
    """Seconds a step gained and lost, and how much of the step the timed modules are; plain types."""
    factor = step.factor(CHANNELS_LAST, CONTIGUOUS)
    return {
        "step_s": {name: step.median(name) for name in FORMATS},
        "step_rounds_s": {name: step.totals(name) for name in FORMATS},
        "step_factor": factor.median,
        "step_factor_spread": list(factor.spread),
        "layers_share_of_step": {
            name: sum(result.seconds(name) for result in results) / step.median(name) for name in FORMATS
        },
        "gain_s": -sum(result.loss for result in faster(results)),
        "loss_s": sum(result.loss for result in slower(results)),
    }


def lines(results: Sequence[LayerResult], summary: dict[str, Any]) -> list[str]:
    step, shares = summary["step_s"], summary["layers_share_of_step"]
    low, high = summary["step_factor_spread"]
    calls = sum(len(result.case.names) for result in results)
    report = [
        f"whole step: contiguous {_ms(step[CONTIGUOUS])} ms, channels-last {_ms(step[CHANNELS_LAST])} ms, "
        f"factor {summary['step_factor']:.3f} ({low:.3f} to {high:.3f})",
        f"modules with 4-D input: {calls} calls of {len(results)} kinds, timed alone; together "
        f"{shares[CONTIGUOUS]:.0%} of the contiguous step, {shares[CHANNELS_LAST]:.0%} of the channels-last one",
    ]
    report += _table(slower(results), step[CHANNELS_LAST])
    report += _totals(results, summary)
    apart = [result for result in results if result.times is not None and not result.case.met]
    if apart:
        names = ", ".join(result.case.label for result in apart)
        report.append(f"never reached by a channels-last tensor in this model, so not counted: {names}")
    report += [f"not timed: {r.case.label} {r.case.module}: {r.problem}" for r in results if r.times is None]
    return report


def _table(found: Sequence[LayerResult], step: float) -> list[str]:
    if not found:
        return ["slower in channels-last: none beyond its spread"]
    head = f"  {'loss ms':>9}  {'factor':>6}  {'(spread)':<17}  {'forward':>7}  {'backward':>8}  {'of step':>7}  module"
    rows = ["slower in channels-last (factor: channels-last time / contiguous time), worst loss a step first:", head]
    for result in found:
        low, high = result.factor.spread
        parts = [_part_factor(result, part) for part in (0, 1)]
        cliffs = f"  [{'; '.join(result.cliffs)}]" if result.cliffs else ""
        rows.append(
            f"  {_ms(result.loss):>9}  {result.factor.median:6.2f}  {f'({low:.2f} to {high:.2f})':<17}  "
            f"{parts[0]:>7}  {parts[1]:>8}  {result.seconds(CHANNELS_LAST) / step:7.1%}  "
            f"{result.case.label} {result.case.module} on {result.case.shapes}{cliffs}"
        )
    return rows


def _totals(results: Sequence[LayerResult], summary: dict[str, Any]) -> list[str]:
    gain, loss, step = summary["gain_s"], summary["loss_s"], summary["step_s"][CONTIGUOUS]
    unclear = sum(result.verdict == "unclear" for result in results)
    return [
        f"gain {_ms(gain)} ms a step in {len(faster(results))} kinds, loss {_ms(loss)} ms in {len(slower(results))}: "
        f"net {_ms(gain - loss)} ms, {(gain - loss) / step:.1%} of the contiguous step; "
        f"{unclear} kinds differ by no more than their spread"
    ]


def _part_factor(result: LayerResult, part: int) -> str:
    """Factor of the forward (0) or backward (1) pass; a dash where there is none to speak of."""
    assert result.times is not None
    contiguous, last = (result.times.median(name, part) for name in FORMATS)
    return f"{last / contiguous:.2f}" if min(contiguous, last) > 1e-6 else "-"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if abs(seconds) < 0.1 else f"{1e3 * seconds:.0f}"


def prepare_chart(path: Path) -> None:
    """Before anything is measured: UserError where no picture could be drawn or written."""
    try:
        import matplotlib  # noqa: F401

        path.parent.mkdir(parents=True, exist_ok=True)
    except ModuleNotFoundError as error:
        raise UserError("--png needs the package matplotlib: pip install matplotlib, or drop --png") from error
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error}): give another --png") from error


def draw_chart(results: Sequence[LayerResult], title: str, path: Path) -> None:
    """Milliseconds a step lost (right) and gained (left), the largest first, with each one's factor."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    clear = [*slower(results), *faster(results)]
    shown = sorted(sorted(clear, key=lambda r: -abs(r.loss))[:MOST_BARS], key=lambda r: r.loss)
    figure = Figure(figsize=(11, 1.6 + 0.28 * max(len(shown), 4)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = ["tab:red" if result.loss > 0 else "tab:blue" for result in shown]
    bars = axes.barh(range(len(shown)), [1e3 * result.loss for result in shown], color=colours)
    axes.bar_label(bars, [f"{result.factor.median:.2f}x" for result in shown], padding=3, fontsize=7)
    names = [f"{r.case.label}  {r.case.module.partition('(')[0]} {r.case.shapes}" for r in shown]
    axes.set_yticks(range(len(shown)), names, fontsize=7)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.margins(x=0.12)
    axes.set_xlabel("ms a step that channels-last costs (red) or gains (blue); factor: its time / contiguous time")
    axes.set_title(title, fontsize=9)
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error}): give another --png") from error

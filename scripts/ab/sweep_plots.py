"""The bar chart of a sweep: a group of bars a model, intervals, and the ranges that the tutorial published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ab.plots import COLOURS, pyplot
from ab.sweep_plan import PUBLISHED
from ab.sweep_table import TITLES

_HEIGHT = 0.15  # inches a bar


def draw_modes(rows: Sequence[Mapping[str, Any]], folder: Path, stem: str) -> dict[str, Path]:
    """Mode to PNG; modes without a measured row are left out."""
    found = {}
    for mode, title in TITLES.items():
        measured = [row for row in rows if row["state"] == "measured" and row["mode"] == mode]
        if measured:
            found[mode] = _draw(measured, title, folder / f"{stem}_{mode}.png")
    return found


def _draw(rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> Path:
    models = sorted({row["model"] for row in rows}, reverse=True)
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    thick = 0.8 / len(settings)
    height = 1.6 + _HEIGHT * len(models) * (len(settings) + 1)
    figure, axes = pyplot.subplots(figsize=(8, height), dpi=120, layout="constrained")
    for (label, (low, high)), colour in zip(PUBLISHED.items(), ("#999999", "#d9c27a"), strict=True):
        axes.axvspan(low, high, color=colour, alpha=0.25, label=label, linewidth=0)
    for place, setting in enumerate(settings):
        own = [row for row in rows if row["setting"] == setting]
        at = [models.index(row["model"]) + 0.4 - thick * (place + 0.5) for row in own]
        axes.barh(
            at, [row["value"] for row in own], thick, color=COLOURS[place % len(COLOURS)], alpha=0.75, label=setting
        )
        bounded = [(y, row) for y, row in zip(at, own, strict=True) if row["high"] is not None]
        for y, row in bounded:
            axes.plot([row["low"], row["high"]], [y, y], color="#222222", linewidth=1)
    axes.axvline(1.0, color="#555555", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(models)), models)
    axes.set_ylim(-0.6, len(models) - 0.4)
    # An interval of two rounds may reach far: it is cut off rather than the bars made small.
    axes.set_xlim(0, 1.25 * max(1.76, *(row["value"] for row in rows)))
    axes.set_xlabel("channels-last's throughput over contiguous's; line: 95 % interval")
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.savefig(path)
    pyplot.close(figure)
    return path

#!/usr/bin/env python3
"""Loss, accuracy, speed and learning rate of any runs in one picture: a PNG, and an HTML page that needs nothing beside it.

Reads metrics.jsonl of each run folder, so TensorBoard is not needed, and a run that is still going on can be drawn.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "scripts")) if path not in sys.path]

from trainer.errors import EXIT_OK, EXIT_USER, UserError, os_reason  # noqa: E402

Rows = list[dict[str, Any]]
_HEADER = ("run", "epochs", "steps", "best val Prec@1", "last val loss", "images/s", "peak memory, GiB")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2024; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: right; padding: .3rem .7rem; border-bottom: 1px solid #dfe2e6; }
td:first-child, th:first-child { text-align: left; overflow-wrap: anywhere; } img { width: 100%; height: auto; }
"""


@dataclass(frozen=True)
class Run:
    """A run's name and its records: one a logged step, one an epoch."""

    name: str
    steps: Rows
    epochs: Rows


def read_run(folder: Path) -> Run:
    """Raises UserError for a folder without a record."""
    path = folder / "metrics.jsonl" if folder.is_dir() else folder
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or "it holds no text"
        raise UserError(f"{path} cannot be read ({why}): name folders that train.py wrote") from error
    found: dict[str, Rows] = {"step": [], "epoch": []}
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if number == len(lines):  # a run that goes on may be writing it
                break
            raise UserError(f"{path}, line {number} is no JSON: name folders that train.py wrote") from error
        kind = record.get("kind") if isinstance(record, dict) else None
        if not isinstance(kind, str) or (kind in found and not isinstance(record.get("step"), int)):
            raise UserError(f"{path}, line {number} is no record of a run: name folders that train.py wrote")
        found.get(kind, []).append(record)
    if not found["step"] and not found["epoch"]:
        raise UserError(f"{path} holds no logged step yet")
    return Run(path.parent.name, found["step"], found["epoch"])


def name_apart(runs: Sequence[Run], folders: Sequence[Path]) -> list[Run]:
    """The same runs, by their whole path where folder names repeat."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return list(runs)
    return [Run(str(folder), run.steps, run.epochs) for run, folder in zip(runs, folders, strict=True)]


def points(rows: Rows, key: str) -> tuple[list[int], list[float]]:
    """Steps and values of ``key`` where it is a number: a non-finite value is null in the file."""
    pairs = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
    return [step for step, _ in pairs], [value for _, value in pairs]


def draw(runs: Sequence[Run], path: Path) -> None:
    """The four charts as a PNG."""
    from ab.plots import COLOURS, pyplot

    styles: list[dict[str, Any]] = [
        {"color": COLOURS[place % len(COLOURS)], "linestyle": ("-", "--", ":")[place // len(COLOURS) % 3]}
        for place in range(len(runs))
    ]
    figure, axes = pyplot.subplots(2, 2, figsize=(12, 7.5), dpi=110, layout="constrained")
    charts = (
        ("loss", axes[0, 0], "loss", "train_loss", "val_loss"),
        ("Prec@1, %", axes[0, 1], "acc1", "train_acc1", "val_acc1"),
        ("images a second, all ranks", axes[1, 0], "images_per_sec_total", "images_per_sec_total", None),
        ("learning rate", axes[1, 1], "lr", None, None),
    )
    for title, one, key, of_epoch, of_val in charts:
        one.set(title=title, xlabel="step")
        one.spines[["top", "right"]].set_visible(False)
        one.grid(alpha=0.25)
        for run, style in zip(runs, styles, strict=True):
            found = points(run.steps, key)
            marker = "." if len(found[0]) == 1 else None  # a line of one point would not be seen
            one.plot(*found, marker=marker, linewidth=1, alpha=0.5 if of_epoch else 1, **style)
            if of_epoch:
                one.plot(*points(run.epochs, of_epoch), linewidth=2, **style)
            if of_val:
                one.plot(*points(run.epochs, of_val), "o", markersize=5, color=style["color"])
    axes[0, 0].set_yscale("log")  # a first validation may have a hundred times the loss of the last
    axes[1, 0].set_ylim(bottom=0)
    handles = [pyplot.Line2D([], [], label=run.name, **style) for run, style in zip(runs, styles, strict=True)]
    handles += [
        pyplot.Line2D([], [], color="#555555", linewidth=1, alpha=0.5, label="logged steps"),
        pyplot.Line2D([], [], color="#555555", linewidth=2, label="whole epochs"),
        pyplot.Line2D([], [], color="#555555", linestyle="", marker="o", label="validation"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path)
    pyplot.close(figure)


def table(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """A row a run, as text."""
    rows: list[tuple[str, ...]] = []
    for run in runs:
        _, accuracies = points(run.epochs, "val_acc1")
        _, losses = points(run.epochs, "val_loss")
        _, speeds = points(run.epochs or run.steps, "images_per_sec_total")
        _, memory = points(run.epochs or run.steps, "peak_memory_gib")
        last = [*run.steps, *run.epochs]
        rows.append((run.name, str(len(run.epochs)), str(max(row["step"] for row in last)),
                     f"{max(accuracies):.3f}" if accuracies else "-", f"{losses[-1]:.4f}" if losses else "-",
                     f"{speeds[-1]:.1f}" if speeds else "-", f"{max(memory):.2f}" if memory else "-"))  # fmt: skip
    return rows


def page(runs: Sequence[Run], picture: Path) -> str:
    """The picture and the table as one HTML page."""
    lines = [_HEADER, *table(runs)]
    cells = [
        "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line) + "</tr>"
        for line, tag in zip(lines, ["th"] + ["td"] * len(runs), strict=True)
    ]
    encoded = base64.b64encode(picture.read_bytes()).decode()
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>Runs</title><style>{_STYLE}</style><h1>Runs</h1>"
        f"<table>{''.join(cells)}</table><img alt='loss, accuracy, speed and learning rate' src='data:image/png;base64,{encoded}'>"
        "</html>\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--output", type=Path, default=Path("runs.png"), metavar="FILE.png",
                        help="the picture; the page lies beside it with the suffix .html (default: runs.png)")  # fmt: skip
    args = parser.parse_args(argv)
    try:
        if args.output.suffix != ".png":
            raise UserError(f"--output {args.output}: the picture is a PNG, name it so")
        runs = name_apart([read_run(folder) for folder in args.runs], args.runs)
        written = args.output.with_suffix(".html")
        try:
            args.output.parent.mkdir(parents=True, exist_ok=True)
            draw(runs, args.output)
            written.write_text(page(runs, args.output), encoding="utf-8")
        except OSError as error:
            raise UserError(f"--output {args.output} cannot be written: {os_reason(error)}") from error
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USER
    print(f"written: {args.output}, {written}")
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())

"""A DataReport as text for people and as one JSON object for programs."""

from __future__ import annotations

import statistics
from typing import Any

from data.preflight import DataReport, SplitReport

BAD_SHOWN = 50
_FEWEST_SHOWN = 5
_TWINS_SHOWN = 3


def as_json(report: DataReport, data_dir: str | None) -> dict[str, Any]:
    """Plain types, nothing left out. ``width`` and ``height``: smallest and largest, None where no file was read."""
    return {
        "data": data_dir,
        "check": report.how,
        "ok": report.ok,
        "splits": {name: _split_as_json(split) for name, split in report.splits.items()},
        "bad_files": [
            {"split": split, "name": bad.name, "class": bad.class_name, "reason": bad.reason}
            for split, bad in report.bad
        ],
        "findings": report.findings,
        "same_names": [{"val": val, "train": train} for val, train in report.same_names],
        "same_contents": [{"val": val, "train": train} for val, train in report.same_contents],
    }


def _split_as_json(split: SplitReport) -> dict[str, Any]:
    sides = split.sides
    return {
        "images": split.images,
        "bad": len(split.bad),
        "classes": split.classes,
        "formats": dict(split.formats),
        "mean_bytes": split.total_bytes / split.readable if split.readable else None,
        "width": list(sides[:2]) if sides else None,
        "height": list(sides[2:]) if sides else None,
    }


def as_lines(report: DataReport) -> list[str]:
    """The report for people; names in it may hold anything, line breaks too."""
    lines = []
    for name, split in report.splits.items():
        lines += [f"{name}: {_facts(split)}", f"  {_class_summary(split)}"]
    lines += [f"finding: {text}" for text in report.findings]
    lines += [f"bad file: {bad.name} (class {bad.class_name}): {bad.reason}" for _, bad in report.bad[:BAD_SHOWN]]
    if len(report.bad) > BAD_SHOWN:
        lines.append(f"and {len(report.bad) - BAD_SHOWN} more bad files (--json lists all)")
    twins = ((report.same_names, "have the name of"), (report.same_contents, "have the very bytes of"))
    lines += [_twins_line(pairs, what) for pairs, what in twins if pairs]
    if report.ok:
        lines.append(f"nothing wrong found ({_depth(report)})")
    return lines


def verdict(report: DataReport) -> str:
    """One sentence on a report that is not ``ok``."""
    parts = []
    if report.bad:
        where = ", ".join(f"{len(split.bad)} in {name}" for name, split in report.splits.items() if split.bad)
        files = "1 file" if len(report.bad) == 1 else f"{len(report.bad)} files"
        parts.append(f"{files} cannot be read ({where}): mend or remove them, or train with --bad-images skip")
    if report.findings:
        count = len(report.findings)
        parts.append(f"{count} finding{'s' * (count > 1)} about the folders: mend them as said above")
    return f"{'; '.join(parts)} ({_depth(report)})"


def _depth(report: DataReport) -> str:
    return "all pixels decoded" if report.how == "full" else "headers only; --check-data full decodes all pixels"


def _facts(split: SplitReport) -> str:
    parts = [split.described]
    if split.sides is not None:
        width, wide, height, high = split.sides
        formats = ", ".join(f"{count} {name}" for name, count in sorted(split.formats.items()))
        parts += [
            formats,
            f"{width} to {wide} pixels wide and {height} to {high} high",
            f"{split.total_bytes / split.readable / 1024:.1f} KiB on average",
        ]
    return "; ".join([*parts, f"{len(split.bad)} bad"])


def _class_summary(split: SplitReport) -> str:
    counts = sorted(split.classes.items(), key=lambda item: item[1])
    if not counts:
        return "no class"
    numbers = [count for _, count in counts]
    fewest = ", ".join(f"{name} {count}" for name, count in counts[:_FEWEST_SHOWN])
    return (
        f"images a class: {numbers[0]} to {numbers[-1]}, median {statistics.median(numbers):g}; fewest: {fewest}"
        f"{', ...' * (len(counts) > _FEWEST_SHOWN)}"
    )


def _twins_line(pairs: list[tuple[str, str]], what: str) -> str:
    shown = ", ".join(f"{val} and {train}" for val, train in pairs[:_TWINS_SHOWN])
    return f"note: {len(pairs)} of val's files {what} one of train's: {shown}{', ...' * (len(pairs) > _TWINS_SHOWN)}"

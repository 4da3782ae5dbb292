"""The table of a sweep: machine, commands, a summary, one row a model and setting, what was not run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ab.sweep_plan import PUBLISHED
from ab.sweep_record import key_of, not_run
from ab.verdict import UNSTABLE, WIDE

TITLES = {"train": "Training", "inference": "Inference"}
_OTHER = ("input-bound", "unstable", "different results")
_HEADER = ("model", "setting", "ratio", "95 % interval", "verdict", "img/s, contiguous", "channels-last")


def markdown(contents: Sequence[Mapping[str, Any]], pictures: Mapping[str, Path]) -> str:
    """``contents``: one sweep.json each; ``pictures``: mode to the file of its bar chart."""
    rows = [row for content in contents for row in content["rows"]]
    measured = [row for row in rows if row["state"] == "measured"]
    lines = ["# Channels-last against contiguous, model by model", ""]
    lines += [f"- Machine: {text}" for text in machines(measured)]
    lines += [f"- Method: {_method(content)}" for content in contents[:1]]
    lines += [f"- Flags: `{flags}`" for flags in dict.fromkeys(" ".join(content["common"]) for content in contents)]
    for name, flags in _settings(contents).items():
        lines.append(f"- Setting {name}: `{flags}`" if flags else f"- Setting {name}: no flags of its own")
    lines += ["", "Ratio: channels-last's throughput over contiguous's; above 1 channels-last is faster. "
              f"Published: {'; '.join(PUBLISHED)}. \"No difference\" means that the interval holds 1, \"unstable\" that the ratio "
              f"varied by more than {100 * UNSTABLE:.0f} % (standard deviation) from round to round or that an interval which holds 1 reaches further than {100 * WIDE:.0f} %.", "",
              *[f"    {command}" for content in contents for command in content["commands"]], ""]  # fmt: skip
    lines += [*_summary(measured), ""]
    for mode, title in TITLES.items():
        lines += _section(title, [row for row in measured if row["mode"] == mode], pictures.get(mode))
    ended = {key_of(row) for row in rows if row["state"] != "interrupted"}
    lines += _left_out(rows, [key for content in contents for key in not_run(content) if key not in ended])
    return "\n".join(lines).rstrip() + "\n"


def machines(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each machine the rows come from, with versions and revisions."""
    found: dict[str, set[str]] = {}
    for row in measured:
        machine = row["machine"]
        devices = ", ".join(str(machine[name]) for name in ("gpu", "cpu") if machine.get(name))
        text = f"{devices}; {machine['cores']} cores, {machine['threads']} threads; torch {machine['torch']}, Python {machine['python']}"
        found.setdefault(text, set()).add((row["revision"] or "unknown")[:10])
    return [f"{text}; revision {', '.join(sorted(revisions))}" for text, revisions in found.items()]


def _method(content: Mapping[str, Any]) -> str:
    options = content["options"]
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options.items() if name != "in_process")
    how = (
        "both formats of a model in one process (a quick look: they share heap and caches, the loader is in no time), in alternating "
        "steps on the same made-up or loaded batches from the same weights"
        if options.get("in_process")
        else "fresh processes in alternating order"
    )
    return f"{how}; {said or 'the defaults of compare.py'}; each model's measurement in a process of its own"


def _settings(contents: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {name: flags for content in contents for name, flags in content["settings"].items()}


def _summary(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in measured:
        groups.setdefault((row["mode"], row["setting"]), []).append(row)
    lines = _head(
        ("mode", "setting", "models", "faster", "slower", "no difference", "other", "geometric mean", "from", "to")
    )
    for (mode, setting), rows in sorted(groups.items(), reverse=True):
        kinds = Counter(row["kind"] for row in rows)
        other = sum(kinds[kind] for kind in _OTHER)
        ratios = [row["value"] for row in rows if row["kind"] != "different results"]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
        ends = [f"{end(ratios):.2f}" if ratios else "-" for end in (min, max)]
        cells = [
            mode,
            setting,
            len(rows),
            kinds["faster"],
            kinds["slower"],
            kinds["no difference"],
            other,
            f"{mean:.2f}",
            *ends,
        ]
        lines.append(_line(cells))
    return lines


def _section(title: str, rows: Sequence[Mapping[str, Any]], picture: Path | None) -> list[str]:
    if not rows:
        return []
    lines = [f"## {title}", ""]
    lines += [f"![{title}: ratio of each model, 95 % intervals]({picture.name})", ""] if picture else []
    lines += _head(_HEADER)
    for row in sorted(rows, key=lambda row: (row["model"], row["setting"])):
        interval = f"{row['low']:.2f} to {row['high']:.2f}" if row["high"] is not None else "one round"
        speeds = [f"{speed:.2f}" for speed in row["speeds"]]
        lines.append(_line([row["model"], row["setting"], f"{row['value']:.2f}", interval, row["kind"], *speeds]))
    return [*lines, ""]


def _left_out(rows: Sequence[Mapping[str, Any]], missing: Sequence[tuple[str, str, str]]) -> list[str]:
    lines = []
    failed = [row for row in rows if row["state"] == "failed"]
    if failed:
        lines += ["## Failed", ""]
        lines += [f"- {row['model']}, {row['mode']}, {row['setting']}: {row['reason']}" for row in failed] + [""]
    different = [row for row in rows if row["state"] == "measured" and row["kind"] == "different results"]
    if different:
        lines += ["## Different results", ""]
        lines += [f"- {row['model']}, {row['mode']}, {row['setting']}: {row['results']}" for row in different] + [""]
    if missing:
        by_setting: dict[tuple[str, str], list[str]] = {}
        for model, mode, setting in missing:
            by_setting.setdefault((mode, setting), []).append(model)
        lines += ["## Not run", ""]
        lines += [f"- {mode}, {setting}: {', '.join(sorted(models))}" for (mode, setting), models in by_setting.items()]
    return lines


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), "|" + "---|" * len(cells)]


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"

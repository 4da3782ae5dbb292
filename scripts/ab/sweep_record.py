"""sweep.json: what a sweep was asked for, and a row for each measurement that was begun."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ab.measuring import FILE as COMPARISON
from ab.measuring import plain
from ab.process import last_lines
from ab.sweep_plan import Key, Plan
from ab.verdict import done_by_arm, round_of
from trainer.errors import EXIT_INTERRUPTED, EXIT_NON_FINITE, EXIT_OK, UserError
from trainer.run_folder import write_atomically

FILE = "sweep.json"
_MACHINE = ("gpu", "cpu", "cores", "threads", "torch", "python")


class SweepRecord:
    """The rows of a sweep folder, kept on disk after each measurement."""

    def __init__(self, folder: Path, content: dict[str, Any]) -> None:
        self.folder = folder
        self.content = content

    @classmethod
    def open(cls, folder: Path, plan: Plan, command: str) -> SweepRecord:
        """A new folder, or the one of an earlier call. Raises UserError where that was asked for something else."""
        content: dict[str, Any] = {"version": 1, "commands": [], "common": plan.common, "options": plan.options}
        content |= {"settings": {}, "asked": [], "rows": []}
        if (folder / FILE).exists():
            content = load(folder)
        for what, now in (("common", plan.common), ("options", plan.options)):
            if content[what] != now:
                raise UserError(
                    f"{folder} holds a sweep with {what} {content[what]}, this one has {now}: take another --output-dir"
                )
        for name, flags in plan.settings.items():
            if content["settings"].setdefault(name, flags) != flags:
                raise UserError(
                    f"{folder} holds a setting {name} with the flags {content['settings'][name]!r}, not {flags!r}: give it another name"
                )
        if command not in content["commands"]:
            content["commands"].append(command)
        return cls(folder, content)

    def ask(self, keys: Sequence[Key]) -> None:
        known = {tuple(key) for key in self.content["asked"]}
        self.content["asked"] += [list(key) for key in keys if key not in known]
        self.save()

    def measured(self, key: Key) -> bool:
        return any(key_of(row) == key and row["state"] == "measured" for row in self.content["rows"])

    def seconds(self) -> dict[Key, float]:
        """Wall time of what was measured."""
        return {key_of(row): row["seconds"] for row in self.content["rows"] if row["state"] == "measured"}

    def add(self, row: dict[str, Any]) -> None:
        """In place of an earlier attempt's row."""
        rows = [one for one in self.content["rows"] if key_of(one) != key_of(row)]
        self.content["rows"] = [*rows, row]
        self.save()

    def save(self) -> None:
        write_atomically(self.folder / FILE, json.dumps(plain(self.content), indent=1) + "\n")


def key_of(row: Mapping[str, Any]) -> Key:
    return row["model"], row["mode"], row["setting"]


def without_replaced(contents: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same, less the rows that a later sweep measured again."""
    last = {key_of(row): place for place, content in enumerate(contents) for row in content["rows"]}
    return [
        {**content, "rows": [row for row in content["rows"] if last[key_of(row)] == place]}
        for place, content in enumerate(contents)
    ]


def not_run(content: Mapping[str, Any]) -> list[Key]:
    """What was asked for and never begun, or not ended."""
    ended = {key_of(row) for row in content["rows"] if row["state"] != "interrupted"}
    asked: list[Key] = [(key[0], key[1], key[2]) for key in content["asked"]]
    return [key for key in asked if key not in ended]


def load(folder: Path) -> dict[str, Any]:
    """The sweep.json in a folder. Raises UserError."""
    path = folder / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        missing = {"commands", "common", "options", "settings", "asked", "rows"} - content.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is no sweep.json that can be read: {error}") from None
    if missing:
        raise UserError(f"{path} is no sweep.json: it lacks {', '.join(sorted(missing))}")
    return content


def read_row(key: Key, folder: Path, log: Path, exit_code: int, seconds: float) -> dict[str, Any]:
    """A measurement's row from what its comparison left; ``seconds``: wall time."""
    row: dict[str, Any] = {
        **dict(zip(("model", "mode", "setting"), key, strict=True)),
        "seconds": seconds,
        "reason": None,
    }
    try:
        content = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    if exit_code == EXIT_INTERRUPTED:
        return {**row, "state": "interrupted", "reason": "interrupted"}
    if content is None or not content["verdicts"] or exit_code not in (EXIT_OK, EXIT_NON_FINITE):
        return {**row, "state": "failed", "reason": _reason(content, log, exit_code)}
    (verdict,) = content["verdicts"]
    ratio, environment = verdict["ratio"], content["environment"] or {}
    speeds = [statistics.median(round_of(run).rate for run in runs.values()) for runs in done_by_arm(content).values()]
    resolved = content["runs"][0]["resolved"]
    return {
        **row,
        "state": "measured",
        "kind": verdict["kind"],
        "sentence": verdict["sentence"],
        "results": verdict["results"]["text"],
        **{name: ratio[name] for name in ("value", "low", "high", "spread", "by_round")},
        "speeds": speeds,
        **{name: resolved[name] for name in ("opt_level", "amp_dtype", "cpu_heap", "batch_size", "image_size")},
        "machine": {name: environment.get(name) for name in _MACHINE},
        "revision": environment.get("git_revision"),
    }


def was_interrupted(folder: Path) -> bool:
    """Whether a comparison stands there that ``compare.py --resume`` would go on with, and has rounds to keep."""
    try:
        content = json.loads((folder / COMPARISON).read_text(encoding="utf-8"))
        return content["state"] == "interrupted" and bool(content["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _reason(content: dict[str, Any] | None, log: Path, exit_code: int) -> str:
    if exit_code < 0:
        return f"ended by signal {-exit_code}" + (
            ", which is what running out of memory looks like" if exit_code == -9 else ""
        )
    failure = (content or {}).get("failure")
    lines = failure["last_lines"] if failure else last_lines(str(log))
    lines = [line.strip() for line in lines if line.strip()]
    return lines[-1][:300] if lines else f"exit code {exit_code}, no line"

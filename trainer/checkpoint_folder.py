"""The checkpoints of one run: their names, which are kept, and the newest that is whole."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.checkpoint import read_checkpoint, write_checkpoint
from trainer.errors import UserError
from trainer.run_folder import BEST, LAST

_STEP = re.compile(r"step_(\d+)\.pt")


def step_name(step: int) -> str:
    """``step_00001200.pt``: attempted updates of the run."""
    return f"step_{step:08d}.pt"


def step_files(folder: Path) -> dict[int, Path]:
    """The step files in ``folder`` by their step, newest first."""
    found = ((_STEP.fullmatch(path.name), path) for path in folder.glob("step_*.pt"))
    return dict(sorted(((int(match[1]), path) for match, path in found if match), reverse=True))


class CheckpointFolder:
    """Where a run saves. ``keep``: step files that stay; ``last.pt`` and ``best.pt`` are more names of one of them,
    and ``best.pt`` stays when its step file goes."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self._keep = keep

    def write(self, content: dict[str, Any], is_best: bool) -> Path:
        """Write all names of one save, then remove what is no longer kept; returns the step file. Raises OSError."""
        self.path.mkdir(exist_ok=True)
        step = int(content["step"])
        target = self.path / step_name(step)
        also = [self.path / BEST, target] if is_best else [target]
        write_checkpoint(self.path / LAST, content, also)
        with contextlib.suppress(OSError):
            self._remove_old(step)
        return target

    def _remove_old(self, step: int) -> None:
        """Files of later steps belong to a course that the run has left: it went on from an earlier checkpoint."""
        steps = step_files(self.path)
        kept = [number for number in steps if number <= step][: self._keep]
        for number, path in steps.items():
            if number not in kept:
                path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Temporary files that a killed process left; the caller holds the run's lock."""
    for path in (*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def newest_whole(
    folder: Path, accept: Callable[[dict[str, Any]], bool] = lambda _: True
) -> tuple[Path | None, dict[str, Any] | None, list[str]]:
    """The checkpoint of the latest step that is whole and that ``accept`` takes: its path, its content, and a line for
    each damaged file that was passed over. ``best.pt`` is what remains when all others are gone."""
    lines: list[str] = []

    def read(path: Path) -> dict[str, Any] | None:
        try:
            content = read_checkpoint(path)
        except UserError as error:
            lines.append(f"skipping {path}: {str(error).removeprefix(f'--resume {path}').lstrip(': ')}")
            return None
        return content if accept(content) else None

    last = read(folder / LAST) if (folder / LAST).exists() else None
    for step, path in step_files(folder).items():
        if last is not None and step <= last.get("step", 0):
            break
        if not _same_file(path, folder / LAST):  # under its other name it was looked at
            content = read(path)
            if content is not None:
                return path, content, lines
    if last is not None:
        return folder / LAST, last, lines
    best = read(folder / BEST) if (folder / BEST).exists() else None
    return (folder / BEST, best, lines) if best is not None else (None, None, lines)


def _same_file(one: Path, two: Path) -> bool:
    return two.exists() and one.samefile(two)

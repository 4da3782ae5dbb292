"""``--rewind``: back to the last good checkpoint where non-finite steps would end the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.checkpoint import read_checkpoint
from trainer.checkpoint_folder import newest_whole
from trainer.content import restore
from trainer.distributed import Group
from trainer.errors import NonFiniteError
from trainer.report import Reporter
from trainer.run_state import Progress, Saver
from trainer.step import Stepper

MOST_REWINDS = 3


class Rewinder:
    """``folder``: the run's, on rank 0. Every rank goes back alike, since all of them hold the guard's counts."""

    def __init__(self, folder: Path | None, group: Group, stepper: Stepper, report: Reporter) -> None:
        self._folder = folder
        self._group = group
        self._stepper = stepper
        self._report = report

    def go_back(self, error: NonFiniteError, now: Progress, saver: Saver) -> Progress:
        """Load the newest good checkpoint; returns where the run then stands, the bad steps left out from there on.

        Raises ``error``, with a word on why, where the run cannot go back or has done so three times.
        """
        if not error.steps or not error.on_every_rank:
            raise error
        # What the save in flight finds non-finite is the same incident, and would else be told as another one later.
        steps = _joined([*error.steps, *self._group.on_main(saver.take_bad_steps)])
        if now.rewinds >= MOST_REWINDS:
            raise NonFiniteError(f"{error} (after {MOST_REWINDS} rewinds)", True, error.steps) from error
        read: list[dict[str, Any]] = []

        def find() -> str | None:
            assert self._folder is not None
            path, content, lines = newest_whole(self._folder / "checkpoints", _is_good)
            for line in lines:
                self._report.console.notice(f"--rewind: {line}")
            if content is not None:
                read.append(content)
            return None if path is None else str(path)

        path = self._group.on_main(find)
        if path is None:
            raise NonFiniteError(f"{error} (--rewind found no good checkpoint)", True, error.steps) from error
        progress, _ = restore(read[0] if read else read_checkpoint(Path(path)), self._stepper, self._group)
        progress.rewinds = now.rewinds + 1
        progress.left_out = [*now.left_out, *map(list, steps)]
        self._stepper.start(progress.skipped_steps, progress.bad_row)
        self._tell(error, steps, progress, Path(path).name)
        return progress

    def _tell(self, error: NonFiniteError, steps: Sequence[tuple[int, int]], progress: Progress, name: str) -> None:
        which = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in steps)
        self._report.console.notice(
            f"{error}; --rewind: back to {name} (step {progress.step}), leaving the images of step{'s' if steps[0][0] != steps[-1][1] else ''} {which} out "
            f"(rewind {progress.rewinds} of {MOST_REWINDS})"
        )
        if self._report.files is not None:
            self._report.files.rewind(
                progress.step,
                {"epoch": progress.epoch, "step": progress.step, "left_out": list(map(list, steps)), "why": str(error)},
            )


def _joined(rows: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same steps in as few rows as hold them."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(rows):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


def _is_good(content: dict[str, Any]) -> bool:
    """Not one that was saved in a row of non-finite steps."""
    return not content.get("bad_row")

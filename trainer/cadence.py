"""When a checkpoint inside an epoch is due: by the count of steps, or by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable


class Cadence:
    """``every_steps``: None for never; ``every_minutes``: 0 for never."""

    def __init__(
        self, every_steps: int | None, every_minutes: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every_steps = every_steps
        self._every_seconds = 60.0 * every_minutes
        self._clock = clock
        self._last = clock()

    def due_by_step(self, step: int) -> bool:
        """``step``: attempted updates of the run so far, so that every rank and every start agree."""
        return self._every_steps is not None and step % self._every_steps == 0

    def due_by_clock(self) -> bool:
        """Whether the last save is long enough ago, by this process's clock."""
        return self._every_seconds > 0 and self._clock() - self._last >= self._every_seconds

    def saved(self) -> None:
        """A save was made just now, whatever it was due by."""
        self._last = self._clock()

"""``--progressive``: the size of a training image as a function of where the run is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SizeSchedule:
    """``stones``: size in pixels, share of the run from which it holds, size, share, ...; the first share is 0.

    An epoch has one size: that of the last stone at or before its start. ``epochs``: of the run; ``repeats``: draws of
    a sample in an epoch (see ``data.sampler``).
    """

    stones: tuple[float, ...]
    epochs: int
    repeats: int = 1

    def __call__(self, draw: int) -> int:
        """Pixels a side in the epoch of ``draw``, the first part of a sample's key."""
        # A hair more: 0.3 of 10 epochs is not quite 3 in binary.
        share = draw // self.repeats / self.epochs + 1e-9
        passed = [size for size, start in zip(self.stones[::2], self.stones[1::2], strict=True) if start <= share]
        return int(passed[-1])

"""The console's table of rounds: on a terminal the row of the present round is written anew as its runs end,
elsewhere every row is one line, once its round is over."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TextIO


class LiveTable:
    """A row a round: images a second of each arm, ratios to the first arm, the time left."""

    def __init__(self, arms: Sequence[str], rounds: int, stream: TextIO | None = None) -> None:
        self._arms = list(arms)
        self._rounds = rounds
        self._stream = stream
        self._open = False  # the last line on the terminal will be written anew

    def header(self) -> None:
        self._write(self._line("round", self._arms, "ratio to the first", "left"), complete=True)

    def row(self, index: int, rates: Mapping[str, float], left: str, running: str | None = None) -> None:
        """Round ``index`` (from 0) with the ``rates`` of the arms that have ended; ``running``: the arm at work."""
        complete = len(rates) == len(self._arms)
        cells = [f"{rates[arm]:.2f} img/s" if arm in rates else "..." * (arm == running) for arm in self._arms]
        first = rates.get(self._arms[0])
        ratios = " ".join(f"{rates[arm] / first:.3f}" for arm in self._arms[1:] if arm in rates) if first else ""
        self._write(self._line(f"{index + 1}/{self._rounds}", cells, ratios, left), complete)

    def end(self) -> None:
        """Whatever is printed next starts on a line of its own."""
        if self._open:
            print(file=self._stream or sys.stdout, flush=True)
            self._open = False

    def _write(self, line: str, complete: bool) -> None:
        stream = self._stream or sys.stdout
        if stream.isatty():
            print(f"\r\x1b[K{line}", end="\n" if complete else "", file=stream, flush=True)
            self._open = not complete
        elif complete:
            print(line, file=stream, flush=True)

    def _line(self, label: str, cells: Sequence[str], ratios: str, left: str) -> str:
        widths = [max(14, len(arm)) for arm in self._arms]
        columns = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        return f"{label:>7}  {columns}  {ratios:>18}  {left:>8}".rstrip()


def say(line: str) -> None:
    print(line, flush=True)

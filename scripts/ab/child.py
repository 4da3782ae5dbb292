"""One comparison in a fresh process that has torch loaded already: its own heap and memory, without the start-up."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.errors import EXIT_INTERRUPTED

# Runs compare.py with these words, its lines to a file; returns the exit code, negative for a signal.
Measure = Callable[[Sequence[str], Path], int]


def start_children() -> Measure:
    """Children are forks of a server that has imported torch and done nothing with it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torchvision", "yaml"])

    def measure(words: Sequence[str], log: Path) -> int:
        child = context.Process(target=_compare, args=(list(words), str(log)))
        child.start()
        try:
            child.join()
        except KeyboardInterrupt:
            # From a terminal the child has had its own; from elsewhere it has not.
            if child.pid is not None:
                os.kill(child.pid, signal.SIGINT)
            child.join(20)
            if child.is_alive():
                child.kill()
                child.join()
            return EXIT_INTERRUPTED
        return child.exitcode or 0

    return measure


def _compare(words: list[str], log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(file, stream)
    import compare

    sys.exit(compare.main(words))

"""Errors that end a run on purpose, each with the exit code it ends with.

They reach the user as one line on stderr; any other exception is a bug of ours or of the
user's own model and keeps its traceback (exit code 1).
"""

from __future__ import annotations

from collections.abc import Sequence

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USER = 2
EXIT_NON_FINITE = 3
EXIT_OUT_OF_MEMORY = 4
EXIT_BAD_DATA = 5
EXIT_INTERRUPTED = 130
EXIT_PREEMPTED = 143
# Codes of failures that a restart meets again.
LASTING = (EXIT_USER, EXIT_NON_FINITE, EXIT_BAD_DATA)


def os_reason(error: OSError) -> str:
    """What the system says, and of which file, on one line."""
    name = error.filename2 or error.filename
    return f"{error.strerror or error}: {name}" if name else f"{error.strerror or error}"


class RunError(Exception):
    """A run that ends with a sentence instead of a traceback.

    ``on_every_rank`` is True where all ranks raise the same error at the same place, so that
    rank 0 alone needs to print it.
    """

    exit_code = EXIT_ERROR
    state = "failed"  # in status.json
    label = "error"  # before the sentence on stderr

    def __init__(self, message: str, on_every_rank: bool = False) -> None:
        super().__init__(message)
        self.on_every_rank = on_every_rank


class UserError(RunError, ValueError):
    """The user's mistake: a flag, a path, a file. Exit code 2."""

    exit_code = EXIT_USER


class NonFiniteError(RunError):
    """Training met a NaN or an infinity that it must not go on from. Exit code 3."""

    exit_code = EXIT_NON_FINITE

    def __init__(self, message: str, on_every_rank: bool = False, steps: Sequence[tuple[int, int]] = ()) -> None:
        """``steps``: first and last of each row of bad steps, 0-based."""
        super().__init__(message, on_every_rank)
        self.steps = tuple(steps)


class OutOfMemory(RunError):
    """The device or the machine ran out of memory. Exit code 4."""

    exit_code = EXIT_OUT_OF_MEMORY


class BadDataError(RunError):
    """Images that cannot be read, under the policy that asks for an end. Exit code 5."""

    exit_code = EXIT_BAD_DATA


class LastingError(RunError):
    """A restart of a run that failed for a reason that stays; ends with that run's code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, on_every_rank=True)
        self.exit_code = exit_code

    def __reduce__(self) -> tuple[type[LastingError], tuple[str, int]]:
        return type(self), (str(self), self.exit_code)


class AlreadyDone(RunError):
    """A restart of a run that is done: nothing is left to do, which is no failure."""

    exit_code = EXIT_OK
    state = "done"
    label = "done"


class Preempted(RunError):
    """A run that stops because a signal asked it to, on every rank alike."""

    state = "preempted"
    label = "stopped"

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, on_every_rank=True)
        self.exit_code = exit_code


class LostRank(RunError):
    """Another process of the run has ended or does not answer. Exit code 1: a restart may go better.

    ``said_already``: the other one has told this machine's user why it ended.
    """

    def __init__(self, message: str, said_already: bool = False) -> None:
        super().__init__(message)
        self.said_already = said_already

"""What torch's loader says when a worker process dies or finds no shared memory, as a sentence with a way out.

It is known by torch's words alone: both come as RuntimeError, out of any line while the loader runs.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterator

from trainer.errors import RunError

SHARED_MEMORY = "/dev/shm"
# A block of shared memory in torch's messages.
_BLOCK = re.compile(r"shared memory\(shm\)|</torch_[0-9]+_")
_DEAD = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([0-9, ]+)\)")
_SIGNAL = re.compile(r"killed by signal: ([^.\n]+)")
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)
_LEAST_FREE = 1 << 20  # bytes; with less, a queue may have found no room


class LoaderFailure(RunError):
    """A loader process died or found no shared memory. Exit code 1: a restart may go better."""


def loader_failure(error: BaseException) -> LoaderFailure | None:
    """The sentence for what the loader failed of; None where it is something else."""
    said = "\n".join(str(each) for each in _chain(error))
    killed = _SIGNAL.search(said)
    dead = _DEAD.search(said)
    # A process that writes to a page for which the file system has no room gets SIGBUS.
    if _BLOCK.search(said) or (dead and killed and killed[1] == signal.strsignal(signal.SIGBUS)):
        return LoaderFailure(_no_room())
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None and _is_full():
        return LoaderFailure(_no_room())
    if dead is None:
        return None
    number = _number(killed[1]) if killed else ""
    how = f"was killed (signal {number})" if killed else "ended unexpectedly"
    if number in {str(int(each)) for each in _CRASHES}:
        advice = "a library it uses crashed, on an image perhaps: -j 0 shows where"
    else:
        advice = (
            "often the machine ran out of memory, which its kernel log tells; use fewer workers (-j) or smaller batches"
        )
    return LoaderFailure(f"a loader process (pid {dead[1]}) {how}: {advice}; a training goes on with --resume")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from; a worker's signal is told by the latter."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _number(name: str) -> str:
    """The number of a signal that is called ``name``, which is kept where it has none."""
    return next((str(int(each)) for each in signal.Signals if signal.strsignal(each) == name), name)


def _no_room() -> str:
    return (
        f"no room for a batch in shared memory ({_size()}), through which loader processes hand them over: use fewer "
        "workers (-j; -j 0 needs none), smaller batches, or enlarge it (docker run --shm-size 8g, or --ipc host)"
    )


def _size() -> str:
    room = _room()
    if room is None:
        return SHARED_MEMORY
    whole, free = (count / 2**20 for count in room)
    return f"{SHARED_MEMORY} has {whole:.3g} MiB, {free:.3g} of them free"


def _is_full() -> bool:
    room = _room()
    return room is not None and room[1] < _LEAST_FREE


def _room() -> tuple[int, int] | None:
    """All of shared memory and what is free of it, in bytes; None where the system has none to ask."""
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

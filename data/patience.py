"""Reading again what a disk or a network did not give at once: such a failure says nothing of the file."""

from __future__ import annotations

import errno
import time

from data.index import SampleIndex
from data.shard_files import RemoteError

# Seconds before each further try. Mounts and object stores that stumble are mostly back by then; longer would hold the
# whole step up, and every rank with it.
PAUSES = (0.2, 1.0)
_PASSING = {
    getattr(errno, name)
    for name in (
        "EIO ESTALE ETIMEDOUT ECONNRESET ECONNABORTED EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH EREMOTEIO EAGAIN EINTR EMFILE ENFILE"
    ).split()
    if hasattr(errno, name)
}


def read_patiently(index: SampleIndex, number: int) -> bytes:
    """The bytes of an image by number, in up to three tries where the failure may pass. Raises OSError."""
    for pause in PAUSES:
        try:
            return index.read(number)
        except OSError as error:
            if not _may_pass(error):
                raise
        time.sleep(pause)
    return index.read(number)


def _may_pass(error: OSError) -> bool:
    if isinstance(error, RemoteError):
        return not isinstance(error.__cause__, FileNotFoundError | PermissionError)
    return error.errno in _PASSING

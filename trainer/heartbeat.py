"""Signs of life of rank 0 while the others wait for something it does alone.

The work may take longer than a process may be silent (a large folder, a download), so its length says nothing: a thread of
rank 0 counts in the store instead, and stands still with it where the process is frozen.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_BEATS = "beats"
_MOST_SECONDS = 10.0


@contextlib.contextmanager
def beating(store: Any, timeout: timedelta) -> Iterator[None]:
    """Count in ``store`` several times in ``timeout`` until the block is left."""
    over, seconds = threading.Event(), min(_MOST_SECONDS, timeout.total_seconds() / 5)

    def beat() -> None:
        with contextlib.suppress(RuntimeError):  # a store that has gone: the main thread meets it too
            while not over.wait(seconds):
                store.add(_BEATS, 1)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def wait_while_beating(store: Any, key: str, timeout: timedelta) -> None:
    """Until ``key`` is set. Raises the store's error where nothing was counted for ``timeout``, or the store has gone."""
    beats = store.add(_BEATS, 0)
    while True:
        try:
            store.wait([key], timeout)
            return
        except dist.DistStoreError:  # the time is over
            now = store.add(_BEATS, 0)
            if now == beats:
                raise
            beats = now

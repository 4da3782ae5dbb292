"""A text file of a run that only grows, and whose disk may be full for a while."""

from __future__ import annotations

import os
import sys
from pathlib import Path


class AppendFile:
    """Appends whole texts. What cannot be written now is kept and goes first when the next text comes.

    Opened anew each time: a handle would go on writing into a file whose folder is gone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending = b""
        self._told = False

    def append(self, text: str) -> None:
        """Never raises OSError; the first of a row of failures is told in one line."""
        self._pending += text.encode("utf-8", errors="surrogateescape")
        try:
            self._write()
        except OSError as error:
            if not self._told:
                self._told = True
                tell_failed_write(self._path, error)
        else:
            self._told = False

    def forget(self) -> None:
        """Drop what could not be written."""
        self._pending = b""

    def _write(self) -> None:
        if not self._pending:
            return
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            while self._pending:
                # A disk that is nearly full takes a part; the rest must not begin the line again.
                self._pending = self._pending[os.write(handle, self._pending) :]
        finally:
            os.close(handle)


def tell_failed_write(path: Path, error: OSError) -> None:
    print(
        f"note: cannot write {path} ({error.strerror or error}): training goes on, and writing is tried again later",
        file=sys.stderr,
        flush=True,
    )

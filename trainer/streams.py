"""The process's own output. A line that cannot be written (disk full, reader gone) or spelled ends nothing."""

from __future__ import annotations

import io
import sys
from typing import Any

from trainer.errors import RunError, os_reason


class _Lossy(io.FileIO):
    """Drops what the system does not take, and keeps the first reason for it."""

    lost: OSError | None = None

    def write(self, data: Any, /) -> int:
        try:
            written = super().write(data)
        except OSError as error:
            self.lost = self.lost or error
            written = None
        return memoryview(data).nbytes if written is None else written


def keep_printing() -> None:
    """From here on, stdout and stderr drop what they cannot write: `| head`, a full disk, a terminal that is gone; the
    run's own files hold the numbers. File names need not be UTF-8: what an encoding has not is printed as escapes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if type(stream) is io.TextIOWrapper:  # not a notebook's stream, nor a test's
            setattr(sys, name, _lossy(stream))
        elif getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def refuse_lost_output() -> None:
    """For a command whose output is its result: raises RunError where stdout took less than all of it. A reader that
    had enough (`| head`) is no failure."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    lost = getattr(raw, "lost", None)
    if lost is not None and not isinstance(lost, BrokenPipeError):
        raise RunError(
            f"standard output took only a part of the report ({os_reason(lost)}); mend that and run the command again"
        )


def _lossy(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if not isinstance(raw, io.FileIO) or isinstance(raw, _Lossy):
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Lossy(raw.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )

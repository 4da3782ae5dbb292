"""How a run ends: its exit code, its last line, its status, and the other ranks."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainer.errors import EXIT_ERROR, EXIT_INTERRUPTED, LostRank, RunError
from trainer.loader_failures import LoaderFailure, loader_failure
from trainer.one_line import one_line
from trainer.streams import keep_printing


@dataclass
class Session:
    """What must be closed whatever happens. Filled by the run as it opens things."""

    group: Any = None
    folder: Any = None
    files: Any = None
    saver: Any = None
    signals: Any = None
    # Until the group is open, one rank a machine speaks for the others, which fail alike.
    main_rank: bool = field(default_factory=lambda: os.environ.get("LOCAL_RANK", "0") == "0")
    show_traceback: bool = False

    def close(self, state: str, why: str | None, code: int, agreed: bool) -> None:
        if self.saver is not None:
            self.saver.join()  # the folder stays locked while a checkpoint is being written
        if self.files is not None:
            self.files.close()
        if self.folder is not None:
            # A rank that fails alone takes the others along, by a lost connection or torchrun's signal: its reason
            # is the run's, whichever rank it is.
            if (self.main_rank or (state == "failed" and not agreed)) and not self.folder.has_failed():
                self._write_status(state, why, code)
            self.folder.release()
        if self.group is not None:
            self.group.close(agreed)
        self.files = self.folder = self.group = self.saver = None

    def _write_status(self, state: str, why: str | None, code: int) -> None:
        try:
            self.folder.write_status(state, why, code)
        except OSError as error:
            print(f"note: status.json could not be written ({error.strerror or error})", file=sys.stderr, flush=True)


def run_to_exit_code(body: Callable[[Session], tuple[str, str | None]]) -> int:
    """Run ``body``; returns the exit code. ``body`` returns the state and why it ended so.

    A RunError ends as one line on stderr, and so does the loss of another rank or of a loader process; any other exception keeps its traceback.
    """
    keep_printing()
    session = Session()
    try:
        state, why = body(session)
        session.close(state, why, 0, agreed=True)
        return 0
    except Exception as error:
        return _fail(session, error)
    except KeyboardInterrupt:
        if session.signals is not None:
            session.signals.hear_no_more()
        print("interrupted", file=sys.stderr, flush=True)
        session.close("preempted", "interrupted", EXIT_INTERRUPTED, agreed=False)
        return EXIT_INTERRUPTED
    finally:
        if session.signals is not None:  # however it ends, the caller gets its handlers back
            session.signals.restore()


def _fail(session: Session, error: Exception) -> int:
    """Say why the run ends and close it; returns the exit code."""
    known = loader_failure(error)
    if known is None and session.group is not None:
        known = session.group.lost_rank(error)
    error = error if known is None else known
    alike = isinstance(error, RunError) and (
        error.on_every_rank or (session.group is None and not isinstance(error, (LostRank, LoaderFailure)))
    )
    if session.group is not None and not alike and not isinstance(error, LostRank):
        session.group.tell_failure(str(error) or type(error).__name__)
    if not isinstance(error, RunError):
        traceback.print_exc()
        session.close("failed", f"{type(error).__name__}: {error}", EXIT_ERROR, agreed=False)
        return EXIT_ERROR
    if session.show_traceback:
        traceback.print_exc()
    # The line that says why must stay the job's last: whoever lost the rank that wrote it has nothing to add.
    if (session.main_rank or not alike) and not getattr(error, "said_already", False):
        print(f"{error.label}: {one_line(str(error))}", file=sys.stderr, flush=True)
    session.close(error.state, str(error), error.exit_code, agreed=alike)
    return error.exit_code

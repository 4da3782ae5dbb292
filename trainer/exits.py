"""How a run ends: its exit code, its last line, its status, and the other ranks."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trainer.errors import EXIT_ERROR, EXIT_INTERRUPTED, RunError


@dataclass
class Session:
    """What must be closed whatever happens. Filled by the run as it opens things."""

    group: Any = None
    folder: Any = None
    files: Any = None
    # Until the group is open, one rank a machine speaks for the others, which fail alike.
    main_rank: bool = field(default_factory=lambda: os.environ.get("LOCAL_RANK", "0") == "0")
    show_traceback: bool = False

    def failure_code(self) -> int | None:
        """The exit code with which a rank of this run has failed already, where one has."""
        return self.folder.failure_code() if self.folder is not None else None

    def close(self, state: str, why: str | None, code: int, agreed: bool) -> None:
        if self.files is not None:
            self.files.close()
        if self.folder is not None:
            # A rank that fails alone takes the others along, by a lost connection or torchrun's signal: its reason
            # is the run's, whichever rank it is.
            if (self.main_rank or (state == "failed" and not agreed)) and self.failure_code() is None:
                self.folder.write_status(state, why, code)
            self.folder.release()
        if self.group is not None:
            self.group.close(agreed)
        self.files = self.folder = self.group = None


def run_to_exit_code(body: Callable[[Session], tuple[str, str | None]]) -> int:
    """Run ``body``; returns the exit code. ``body`` returns the state and why it ended so.

    A RunError ends as one line on stderr; any other exception keeps its traceback.
    """
    session = Session()
    try:
        state, why = body(session)
        session.close(state, why, 0, agreed=True)
        return 0
    except RunError as error:
        alike = error.on_every_rank or session.group is None
        if session.show_traceback:
            traceback.print_exc()
        if session.main_rank or not alike:
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        session.close("failed", str(error), error.exit_code, agreed=alike)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr, flush=True)
        session.close("preempted", "interrupted", EXIT_INTERRUPTED, agreed=False)
        return EXIT_INTERRUPTED
    except Exception as error:
        code = session.failure_code()
        if code is not None:  # the connection to a rank that has said why
            session.close("failed", None, code, agreed=False)
            return code
        traceback.print_exc()
        session.close("failed", f"{type(error).__name__}: {error}", EXIT_ERROR, agreed=False)
        return EXIT_ERROR

"""Signals that ask a run to stop. A handler only sets a flag: the loop looks at it between two steps."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass
from types import FrameType
from typing import Any

from trainer.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED


@dataclass(frozen=True)
class StopReason:
    """Why a run stops: the signal's name and the exit code it ends with."""

    name: str
    exit_code: int


# By rising weight: ranks that got different signals stop for the heaviest. The place is the code they exchange.
# Clusters send one of the user signals some minutes before they take the machine away; SIGHUP comes of a terminal that is closed.
_REASONS = (
    None,
    StopReason("SIGINT", EXIT_INTERRUPTED),
    StopReason("SIGHUP", EXIT_PREEMPTED),
    StopReason("SIGUSR1", EXIT_PREEMPTED),
    StopReason("SIGUSR2", EXIT_PREEMPTED),
    StopReason("SIGTERM", EXIT_PREEMPTED),
)


def stop_reason(code: int) -> StopReason | None:
    """What a code of ``StopSignals.code`` means; None for 0."""
    return _REASONS[code]


class StopSignals:
    """Flags of this process. ``code`` is 0, or that of the heaviest signal so far."""

    def __init__(self) -> None:
        self.code = 0
        self._interrupted = self._ending = False
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Catch the signals; without effect outside the main thread, where Python allows no handler."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _numbers():
            if number == getattr(signal, "SIGHUP", None) and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            self._before[number] = signal.signal(number, self._handle)

    def hear_no_more(self) -> None:
        """The run is ending: another Ctrl-C must not cut its last acts short."""
        self._ending = True

    def restore(self) -> None:
        """Put back the handlers that were there before; one that was changed since stays as it is."""
        for number, before in self._before.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, before)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted and not self._ending:
            raise KeyboardInterrupt  # the second Ctrl-C waits for nothing
        self._interrupted |= number == signal.SIGINT
        self.code = max(self.code, _numbers()[number])


def _numbers() -> dict[int, int]:
    """Signal number -> code, of the signals this system has."""
    names = {reason.name: code for code, reason in enumerate(_REASONS) if reason is not None}
    return {int(getattr(signal, name)): code for name, code in names.items() if hasattr(signal, name)}

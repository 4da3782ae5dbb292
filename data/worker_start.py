"""What a loader worker does first: give way to the training, and outlive the signals that ask the run to stop."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from torch.utils.data import DataLoader


class WorkerLoader(DataLoader[Any]):
    """A DataLoader whose workers are born with SIGTERM blocked: libraries may start threads in a worker
    before ``WorkerStart`` is called, and one thread that takes the signal is the end of the process."""

    def __iter__(self) -> Any:
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            return super().__iter__()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            return super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class WorkerStart:
    """Called in each worker. ``niceness``: where the model trains on the CPU, workers give way to its threads: one
    that is held up holds up all the others at the end of each parallel region. Made in the process that starts them."""

    def __init__(self, niceness: int) -> None:
        self._niceness = niceness
        self._run = os.getpid()  # which is not the parent of a worker that a fork server starts

    def __call__(self, worker: int) -> None:
        if self._niceness:
            os.nice(self._niceness)
        _leave_signals_to_the_run(self._run)


def _leave_signals_to_the_run(run: int) -> None:
    """Ctrl-C, clusters and torchrun signal every process of a run. The run still takes a step and saves before it
    stops, for which it needs its workers; they end when it tells them to, or when it has gone."""
    for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # Linux: it tells who sent the signal
        signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGTERM}
        )  # before the thread starts, which has it from this one
        threading.Thread(target=_end_for_the_run, args=(run, os.getppid()), daemon=True).start()


def _end_for_the_run(run: int, parent: int) -> None:
    """Only a SIGTERM of the run's own process, or one after the parent has gone, ends this process."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != run and os.getppid() == parent:
        pass
    os._exit(0)

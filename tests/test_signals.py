"""A signal sets a flag and nothing else; the second Ctrl-C does not wait."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from trainer.signals import StopReason, StopSignals, stop_reason


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    signals = StopSignals()
    signals.install()
    yield signals
    signals.restore()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGHUP, 143), (signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGUSR2, 143)],
)
def test_a_signal_sets_the_flag(signals: StopSignals, number: signal.Signals, code: int) -> None:
    assert stop_reason(signals.code) is None
    os.kill(os.getpid(), number)
    assert stop_reason(signals.code) == StopReason(number.name, code)


def test_the_second_interrupt_raises(signals: StopSignals) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    assert stop_reason(signals.code) == StopReason("SIGTERM", 143), "the heavier one stays"
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_once_the_run_is_ending_no_interrupt_raises(signals: StopSignals) -> None:
    signals.hear_no_more()
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = StopSignals()
    signals.install()
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signals.code == 0
    finally:
        signals.restore()
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_put_back_except_where_somebody_changed_them() -> None:
    before, interrupt = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    signals = StopSignals()
    signals.install()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signals.restore()
    try:
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_installs_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=StopSignals().install)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before

"""A run that a signal stops: saved within a step, its exit code, and then the run it would have been (R83)."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from helpers import assert_same_end, load, make_folder, rows

from data.worker_start import WorkerStart
from trainer import begin
from trainer.checkpoint_folder import CheckpointFolder
from trainer.checkpoint_writer import CheckpointWriter
from trainer.saver import CheckpointSaver

FLAGS = ["-a", "toy_models:signalled", "--epochs", 2, "--synthetic-size", 36, "--val-batch-size", 2]


def status() -> dict:
    return json.loads(Path("run/status.json").read_text())


@pytest.mark.parametrize(
    ("name", "code"), [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 143), ("SIGUSR1", 143), ("SIGUSR2", 143)], ids=str
)
@pytest.mark.parametrize(
    ("where", "step", "samples"), [("train 3 0", 3, 24), ("train 5 0", 5, 36), ("val 2 0", 5, 36)], ids=str
)
def test_a_signal_stops_the_run_at_the_next_step_and_it_goes_on_from_there(
    run, capsys, monkeypatch, name, code, where, step, samples
):
    """In a step, in the last and short one of an epoch, and in validation (whose first pass is the start's own look)."""
    assert run(*FLAGS, "--output-dir", "straight") == 0
    monkeypatch.setenv("TOY_SIGNALS", f"{name} {where}")
    capsys.readouterr()
    assert run(*FLAGS, "--output-dir", "run") == code
    assert capsys.readouterr().err.startswith(f"stopped: {name}: saved after step {step} ")
    assert (status()["state"], status()["exit_code"], status()["why"].split(":")[0]) == ("preempted", code, name)
    saved = load("run")
    assert (saved["epoch"], saved["step"], saved["samples_in_epoch"]) == (0, step, samples)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "tests and notebooks go on in this process"
    monkeypatch.delenv("TOY_SIGNALS")
    assert run("--resume", "run", base="") == 0
    assert_same_end("straight", "run")
    keys = ("epoch", "step", "images_seen", "lr", "train_loss", "train_acc1", "val_loss", "val_acc1")
    straight, resumed = ([[row[key] for key in keys] for row in rows(name, "epoch")] for name in ("straight", "run"))
    assert straight == resumed


def test_the_second_interrupt_stops_at_once(run, capsys, monkeypatch):
    monkeypatch.setenv("TOY_SIGNALS", "SIGINT,SIGINT train 3 0")
    assert run(*FLAGS, "--output-dir", "run") == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert status()["state"] == "preempted"
    assert not list(Path("run/checkpoints").iterdir())


def test_the_second_interrupt_may_fall_into_the_save_of_the_first(run, capsys, monkeypatch):
    """What is being written is still written, whole, and the run says how it ended."""
    write, collect, waiting = CheckpointFolder.write, CheckpointWriter.collect, threading.Event()

    def interrupted(self: CheckpointFolder, *content: Any) -> Path:
        assert waiting.wait(20)
        time.sleep(0.2)  # the main thread now waits for this one
        os.kill(os.getpid(), signal.SIGINT)
        return write(self, *content)

    def told(self: CheckpointWriter, wait: bool) -> Any:
        if wait and self._written is not None:
            waiting.set()
        return collect(self, wait)

    monkeypatch.setattr(CheckpointFolder, "write", interrupted)
    monkeypatch.setattr(CheckpointWriter, "collect", told)
    monkeypatch.setenv("TOY_SIGNALS", "SIGINT train 3 0")
    assert run(*FLAGS, "--output-dir", "run") == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert status()["state"] == "preempted"
    assert load("run")["step"] == 3


def test_more_interrupts_wait_for_what_is_being_written(run, capsys, monkeypatch):
    """The third falls into the closing of the run, which the second began."""
    write, join, closing = CheckpointFolder.write, CheckpointSaver.join, threading.Event()

    def slow(self: CheckpointFolder, *content: Any) -> Path:
        assert closing.wait(20)
        time.sleep(0.2)  # the main thread now waits for this one
        os.kill(os.getpid(), signal.SIGINT)
        return write(self, *content)

    def told(self: CheckpointSaver) -> None:
        closing.set()
        join(self)

    monkeypatch.setattr(CheckpointFolder, "write", slow)
    monkeypatch.setattr(CheckpointSaver, "join", told)
    monkeypatch.setenv("TOY_SIGNALS", "SIGINT,SIGINT train 3 0")
    assert run(*FLAGS, "--output-dir", "run", "--save-every-steps", 2) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert status()["state"] == "preempted"
    assert load("run")["step"] == 2


def test_a_signal_before_the_first_step_is_heard_from_the_making_of_the_folder_on(run, monkeypatch):
    class Signalled(begin.RunFiles):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            os.kill(os.getpid(), signal.SIGTERM)

    def unheard(*_: Any) -> None:
        raise AssertionError("the process would have ended, its status still running")

    monkeypatch.setattr(begin, "RunFiles", Signalled)
    before = signal.signal(signal.SIGTERM, unheard)
    try:
        assert run(*FLAGS, "--output-dir", "run") == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert status()["state"] == "preempted"
    assert load("run")["step"] == 1


def test_an_evaluation_stops_too(run, capsys, monkeypatch):
    monkeypatch.setenv("TOY_SIGNALS", "SIGTERM val 2 0")
    assert run(*FLAGS, "-e", "--output-dir", "run") == 143
    assert status()["state"] == "preempted"
    assert "Evaluated" not in capsys.readouterr().out


def test_only_its_parents_sigterm_ends_a_worker():
    start = WorkerStart(0)

    def work(pipe: Connection) -> None:
        start(0)
        while True:
            pipe.send(pipe.recv())

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    worker = context.Process(target=work, args=(theirs,), daemon=True)
    worker.start()
    for signals in ([], ["TERM", "INT", "HUP", "USR1", "USR2", "TERM"]):
        for name in signals:
            subprocess.run(["sh", "-c", f"kill -{name} {worker.pid}"], check=True)
        ours.send("still there?")
        assert ours.poll(20), "an unanswered question"
        assert ours.recv() == "still there?"
    worker.terminate()
    worker.join(20)
    assert worker.exitcode == 0


def test_workers_outlive_the_signals_of_their_group(run, monkeypatch):
    """torchrun and clusters signal every process of a job; the run still has a step to take."""
    make_folder(Path("data"), train=16, val=4)
    flags = ["data", "-a", "toy_models:signalled", "-b", 4, "--image-size", 32, "-p", 1, "--epochs", 2, "-j", 2]
    flags += ["--tensorboard", "false"]
    assert run(*flags, "--output-dir", "straight", base="") == 0
    monkeypatch.setenv("TOY_SIGNALS", "SIGTERM train 3 0")
    kill = os.kill

    def to_all(pid: int, number: int) -> None:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) >= 2
        for child in children:
            # Not from their parent, whose own SIGTERM ends them.
            assert os.system(f"kill -{int(number)} {child}; kill -INT {child}") == 0
        kill(pid, number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "kill", to_all)
        assert run(*flags, "--output-dir", "run", base="") == 143
    assert load("run")["step"] == 3
    monkeypatch.delenv("TOY_SIGNALS")
    assert run("--resume", "run", base="") == 0
    assert_same_end("straight", "run")

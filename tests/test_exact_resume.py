"""Stopped at any step and resumed, a run is the run that was not stopped: weights and logged losses, bit for bit."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import assert_same_end, load, make_folder, rows

from trainer.step import Stepper

# 40 images and 8 a step: 10 steps. Lines at steps 1, 3, 5, 6, 8 and 10, so that most stops lie between two of them.
SYNTHETIC = "--b 8 --synthetic-size 40 --image-size 32 --num-classes 4 --tensorboard false -p 3 --epochs 2 --synthetic"
FOLDER = "--b 4 --image-size 32 --tensorboard false -p 3 --epochs 2"
LEVELS = ["O0", "O1", "O2", "O3", "O1 --amp-dtype float16", "O2 --amp-dtype float16"]


class Killed(BaseException):
    """Stands for a SIGKILL: nothing of ours runs after it."""


def kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    original = Stepper.step

    def watched(self, at, *rest):
        if at == step:
            raise Killed
        return original(self, at, *rest)

    monkeypatch.setattr(Stepper, "step", watched)


@pytest.mark.parametrize("level", LEVELS)
def test_stopped_at_every_third_step_at_each_level(run, level):
    flags = ["-a", "toy_models:dropping", "--channels-last", "--opt-level", *level.split(), "--model-ema", 0.9]
    assert run(*flags, "--output-dir", "straight", base=SYNTHETIC) == 0
    for stop in (2, 5, 7):  # between two lines, after the first epoch's last step, in the second epoch
        name = f"stop{stop}"
        assert run(*flags, "--output-dir", name, "--stop-after-steps", stop, base=SYNTHETIC) == 0
        assert run("--resume", name, base="") == 0
        assert_same_end("straight", name)
        assert load(name)["ema"]["updates"] == 10
        assert [row["val_ema_loss"] for row in rows("straight", "epoch")] == [
            row["val_ema_loss"] for row in rows(name, "epoch")
        ]
        assert [row["train_loss"] for row in rows("straight", "epoch")] == [
            row["train_loss"] for row in rows(name, "epoch")
        ]


@pytest.mark.parametrize(
    "more",
    [
        "--grad-accum-steps 2",
        "--mixup 0.4 --cutmix 1.0",
        "--micro-batch 3",
        "--clip-grad-norm 0.1",
        "-a toy_models:tiny",
    ],
)
def test_stopped_twice_with_what_makes_a_step_special(run, more):
    flags = ["-a", "toy_models:dropping", *more.split()]
    assert run(*flags, "--output-dir", "straight", base=SYNTHETIC) == 0
    assert run(*flags, "--output-dir", "parts", "--stop-after-steps", 1, base=SYNTHETIC) == 0
    assert run("--resume", "parts", "--stop-after-steps", 3, base="") == 0
    assert run("--resume", "parts", base="") == 0
    assert_same_end("straight", "parts")


@pytest.mark.parametrize("workers", [(0, 1), (1, 2), (2, 0)])
def test_folder_with_other_workers_after_the_stop(run, workers):
    make_folder(Path("data"), train=10, val=4)
    flags = ["data", "-a", "toy_models:dropping", "--auto-augment", "ta_wide"]
    assert run(*flags, "-j", 0, "--output-dir", "straight", base=FOLDER) == 0
    assert run(*flags, "-j", workers[0], "--output-dir", "halves", "--stop-after-steps", 3, base=FOLDER) == 0
    assert run("--resume", "halves", "-j", workers[1], base="") == 0
    assert_same_end("straight", "halves")


def test_shards(run):
    make_folder(Path("data"), train=10, val=4)
    script = Path(__file__).parent.parent / "scripts/make_shards.py"
    subprocess.run([sys.executable, script, "data", "tars"], check=True, capture_output=True)
    flags = ["--train-shards", "tars/train-*.tar", "--val-shards", "tars/val-*.tar", "-a", "toy_models:dropping"]
    assert run(*flags, "-j", 0, "--output-dir", "straight", base=FOLDER) == 0
    assert run(*flags, "-j", 2, "--output-dir", "halves", "--stop-after-steps", 2, base=FOLDER) == 0
    assert run("--resume", "halves", "-j", 1, base="") == 0
    assert_same_end("straight", "halves")


@pytest.mark.parametrize("asynchronous", ["true", "false"])
def test_a_killed_run_goes_on_from_its_last_step_file(run, monkeypatch, asynchronous):
    """R84: the copies are of the step they say, although training has gone on while they were written."""
    flags = ["-a", "toy_models:dropping", "--opt-level", "O2", "--resume", "auto"]
    assert run(*flags, "--output-dir", "straight", base=SYNTHETIC) == 0
    flags += ["--save-every-steps", 2, "--async-save", asynchronous, "--output-dir", "killed"]
    for at in (3, 7, 9):  # each odd, so the step before was saved; 5 is the end of the epoch
        with monkeypatch.context() as patch:
            kill_at(patch, at)
            with pytest.raises(Killed):
                run(*flags, base=SYNTHETIC)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "whatever ends a run, its caller goes on"
        wait_for_writers()
        assert load("killed")["step"] == at - 1
    assert run(*flags, base=SYNTHETIC) == 0
    assert_same_end("straight", "killed")


def wait_for_writers() -> None:
    """The process is the test's own, so a killed run's thread lives on."""
    import threading

    from trainer import run_folder

    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()
    for handle in list(run_folder._held):  # the kernel unlocks what a killed process held
        run_folder._unlock(handle)


def test_the_dynamic_scale_and_a_row_of_skipped_steps_go_on(run):
    flags = ["-a", "toy_models:nan_first", "--opt-level", "O2", "--amp-dtype", "float16", "--output-dir", "run"]
    assert run(*flags, "--stop-after-steps", 1, base=SYNTHETIC) == 0
    content = load("run")
    assert (content["bad_row"], content["skipped_steps"]) == (1, 1)
    assert content["precision"]["loss_scale"]["scale"] == 32768.0

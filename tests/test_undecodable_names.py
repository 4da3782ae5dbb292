"""Folders whose names are not UTF-8, printed to a strict UTF-8 stdout: escaped, and everything works as ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, load, make_folder, run_bounded

NAME = os.fsdecode(b"caf\xe9")
SHOWN = "caf\\udce9"
FLAGS = "-a toy_models:tiny -b 4 --image-size 32 -j 0".split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    try:
        return make_folder(tmp_path / NAME, train=4, val=2)
    except (OSError, UnicodeError):
        pytest.skip("this file system takes no such name")


def start(tmp_path: Path, script: str, *flags: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A script whose stdout is strict, as it is unless the locale is C."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTHONIOENCODING": "utf-8:strict"}
    command = [sys.executable, str(ROOT / script), *(str(flag) for flag in flags)]
    done = run_bounded(command, tmp_path, environ, 120)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.slow
def test_a_training_goes_through_and_on(folder: Path, tmp_path: Path):
    """With an event file, hparams and the texts in it."""
    done = start(tmp_path, "train.py", folder, *FLAGS, "--epochs", 1, "--output-dir", "run")
    assert f"{SHOWN}: train 8 images" in done.stdout
    assert list(tmp_path.glob("run/events.*"))
    os.rename(folder / "train/a/000.jpg", folder / "train/a" / f"{NAME}.jpg")
    (folder / "train/a" / f"{NAME}.jpg").write_bytes(b"")
    flags = "--epochs", 2, "--bad-images", "skip", "--max-bad-images", 3
    done = start(tmp_path, "train.py", "--resume", "run", *flags)
    assert f"{SHOWN}: train 8 images" in done.stdout, "DIR is the checkpoint's"
    assert load(tmp_path / "run")["epoch"] == 2
    done = start(tmp_path, "train.py", "--resume", "run", "--epochs", 3, "--bad-images", "fail", code=5)
    assert done.stderr.strip().endswith("--check-data lists them all")
    assert f"{SHOWN}.jpg (class a): the file is empty" in done.stderr


def test_a_class_folder(tmp_path: Path):
    """Its accuracy is a point of its own in the event file."""
    make_folder(tmp_path / "data", classes=("a", NAME), train=4, val=2)
    start(tmp_path, "train.py", "data", *FLAGS, "--epochs", 1, "--output-dir", "run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    assert {"val_class_acc1/a", f"val_class_acc1/{SHOWN}"} <= set(events.Tags()["scalars"])


def test_a_run_folder(folder: Path, tmp_path: Path):
    done = start(tmp_path, "train.py", *FLAGS, "--synthetic-size", 8, "--epochs", 1, "--output-dir", folder / "run")
    assert f"run folder {tmp_path}/{SHOWN}/run" in done.stdout
    assert done.stdout.count("note: the run folder's name is not UTF-8") == 1
    assert load(folder / "run")["epoch"] == 1


def test_the_commands_about_data(folder: Path, tmp_path: Path):
    start(tmp_path, "train.py", folder, "--check-data", "-j", 0)
    done = start(tmp_path, "train.py", folder, *FLAGS, "--bench-data", 1, "--json")
    assert json.loads(done.stdout.splitlines()[-1])["data"] == str(folder)
    done = start(tmp_path, "scripts/make_shards.py", folder, tmp_path / f"tars-{NAME}")
    assert f"--train-shards '{tmp_path}/tars-{SHOWN}/train-00000.tar'" in done.stdout


def test_a_folder_that_is_none(folder: Path, tmp_path: Path):
    done = start(tmp_path, "train.py", folder / "train", *FLAGS, code=2)
    assert f"{SHOWN}/train has no train/ folder" in done.stderr

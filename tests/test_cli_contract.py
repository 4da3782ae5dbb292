"""The 11 commands of the original README and the tutorial, flag for flag, on a small two-class folder."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import make_folder

ROOT = Path(__file__).parent.parent
TINY = ["--image-size", "32", "--steps-per-epoch", "1", "--epochs", "1"]

TUTORIAL = [
    "-a resnet50 --b 200 --workers 16 --opt-level O2 ./data",
    "-a resnet50 --b 200 --workers 16 --opt-level O2 --channels-last true ./data",
]
README_COMMANDS = [
    "-a resnet50 --b 128 --workers 4 --opt-level O0 ./",
    "-a resnet50 --b 224 --workers 4 --opt-level O3 ./",
    "-a resnet50 --b 224 --workers 4 --opt-level O3 --keep-batchnorm-fp32 True ./",
    "-a resnet50 --b 224 --workers 4 --opt-level O1 ./",
    "-a resnet50 --b 224 --workers 4 --opt-level O1 --loss-scale 128.0 ./",
    "-a resnet50 --b 224 --workers 4 --opt-level O2 ./",
    "-a resnet50 --b 224 --workers 4 --opt-level O2 --loss-scale 128.0 ./",
]
TWO_PROCESSES = [
    "-a resnet50 --b 224 --workers 4 --opt-level O1 ./",
    "-a resnet50 --b 224 --workers 4 --opt-level O2 ./",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder that holds train/ and val/, and the same again below data/."""
    root = tmp_path_factory.mktemp("contract")
    make_folder(root, train=8, val=3)
    make_folder(root / "data", train=8, val=3)
    return root


def check_run(root: Path, output: str, command: str, images: int) -> None:
    run = root / re.findall(r"run folder (runs/\S+)", output)[-1]
    level = command.split("--opt-level ")[1].split()[0]
    assert f"Selected optimization level {level}:" in output
    channels_last = "--channels-last true" in command
    assert f"-resnet50-{level}-{'channels_last' if channels_last else 'contiguous_format'}" in run.name
    assert "2 classes: Prec@5" in output
    (row,) = csv.DictReader((run / "summary.csv").open())
    assert (int(row["step"]), int(row["images_seen"])) == (1, images)
    assert float(row["train_loss"]) > 0
    strides = re.search(r"first batch .* strides \(\d+, (\d+), \d+, \d+\)", output)
    assert strides is not None
    assert (strides[1] == "1") is channels_last


@pytest.mark.parametrize(
    "command", [*TUTORIAL, *(pytest.param(command, marks=pytest.mark.slow) for command in README_COMMANDS)]
)
def test_one_process(run, folder, capsys, monkeypatch, command):
    monkeypatch.chdir(folder)
    assert run(*command.split(), *TINY, base="") == 0
    check_run(folder, capsys.readouterr().out, command, images=16)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torch.distributed.run", "torch.distributed.launch"])
@pytest.mark.parametrize("command", TWO_PROCESSES)
def test_two_processes(folder, launcher, command):
    start = ["--standalone"] if launcher == "torch.distributed.run" else ["--master-port", str(free_port())]
    environ = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-m", launcher, *start, "--nproc-per-node", "2", str(ROOT / "train.py"), *command.split(), *TINY],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    check_run(folder, done.stdout, command, images=16)
    assert "Grad strides do not match bucket view strides" not in done.stderr


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

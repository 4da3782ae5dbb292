"""Lines that nobody can take end no run: a full disk below the log, a reader that has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, make_folder

FLAGS = "-a toy_models:signalled -b 8 --image-size 32 --synthetic-size 64 --num-classes 4 -p 1 --tensorboard no --output-dir run"


def started(
    folder: Path, shell: str, flags: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """train.py with its output where ``shell`` sends it, by the exit code of train.py itself."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), **(env or {})}
    command = f"set -o pipefail; {sys.executable} {ROOT / 'train.py'} {flags} {shell}"
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environ, timeout=100, check=False, capture_output=True, text=True
    )


def state(folder: Path) -> str:
    return json.loads((folder / "run/status.json").read_text())["state"]


@pytest.mark.parametrize("shell", ["| head -1", ">/dev/full", ">&-", ">/dev/full 2>&1"])
def test_a_log_that_takes_nothing_does_not_stop_the_training(tmp_path: Path, shell: str) -> None:
    assert started(tmp_path, shell, FLAGS).returncode == 0
    assert state(tmp_path) == "done"


@pytest.mark.parametrize(
    ("flags", "signals", "code", "ends"),
    [(FLAGS, "SIGTERM train 3 0", 143, "preempted"), (f"{FLAGS} --resume none.pt", "", 2, None)],
    ids=["stopped", "a mistake"],
)
def test_the_code_and_status_are_the_same_without_a_last_line(
    tmp_path: Path, flags: str, signals: str, code: int, ends: str | None
) -> None:
    done = started(tmp_path, ">/dev/full 2>&1", flags, {"TOY_SIGNALS": signals} if signals else None)
    assert done.returncode == code
    assert ends is None or state(tmp_path) == ends


@pytest.mark.parametrize(("shell", "code"), [(">/dev/full", 1), ("| true", 0), ("> report.json", 0)])
def test_a_report_that_is_cut_is_a_failure(tmp_path: Path, shell: str, code: int) -> None:
    """A log may lose lines; of ``--check-data --json > FILE`` the file is all there is."""
    make_folder(tmp_path / "data", train=4, val=2)
    done = started(tmp_path, shell, "data --check-data --json -j 0")
    assert done.returncode == code, done.stderr
    assert ("only a part of the report (No space left on device)" in done.stderr) is (code == 1)
    assert not done.stderr.count("Traceback")

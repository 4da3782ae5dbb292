"""A loader process that is killed, and shared memory without room: one sentence, exit code 1, whatever the command."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT, launch, make_folder, run_bounded
from torch.utils.data import get_worker_info

from data.dataset import ImageDataset
from data.preflight import Looker
from trainer import loader_failures
from trainer.loader_failures import loader_failure

FLAGS = "-j 2 -b 8 --image-size 64"
COMMANDS = {
    "train": "-a toy_models:tiny --epochs 1 --tensorboard false --output-dir run",
    "check": "--check-data",
    "bench": "--bench-data 3",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "set", train=20, val=2)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_killed_worker_is_one_sentence(run, folder: Path, capfd, monkeypatch: pytest.MonkeyPatch, command: str):
    def killed(self: object, keys: object) -> None:
        info = get_worker_info()
        assert info is not None, "this is the test's own process"
        os.kill(os.getpid(), signal.SIGKILL)

    for source in (ImageDataset, Looker):
        monkeypatch.setattr(source, "__getitems__", killed)
    assert run(folder, *COMMANDS[command].split(), base=FLAGS) == 1
    error = capfd.readouterr().err.strip()
    assert error.startswith("error: a loader process (pid ")
    assert ") was killed (signal 9): often the machine ran out of memory" in error
    assert "(-j)" in error
    assert "\n" not in error
    if command == "train":
        status = json.loads(Path("run/status.json").read_text())
        assert (status["state"], status["exit_code"]) == ("failed", 1)
        assert status["why"].startswith("a loader process (pid ")


def in_small_memory(size: str, *command: str) -> list[str]:
    """``command`` where /dev/shm has ``size``: in a mount namespace of its own."""
    return ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"', "sh", *command]


# Neither a batch has room in 64 KiB nor a queue in 4; the batches of --check-data hold no pixels.
@pytest.mark.parametrize(
    ("command", "size"), [("train", "64k"), ("bench", "64k"), ("train", "4k"), ("check", "4k"), ("bench", "4k")]
)
def test_a_small_dev_shm_is_one_sentence(folder: Path, tmp_path: Path, command: str, size: str):
    """A container has 64 MiB unless told otherwise."""
    try:
        subprocess.run(in_small_memory("1m", "true"), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a small /dev/shm")
    script = [sys.executable, str(ROOT / "train.py"), str(folder), *FLAGS.split(), *COMMANDS[command].split()]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = run_bounded(in_small_memory(size, *script), tmp_path, environ, 120)
    assert done.returncode == 1, done.stderr
    error = done.stderr.strip()
    assert error.startswith(
        f"error: no room for a batch in shared memory (/dev/shm has {int(size[:-1]) / 1024:.3g} MiB, "
    )
    assert "(-j; -j 0 needs none)" in error
    assert "--shm-size" in error
    assert "\n" not in error


def test_the_rank_that_lost_a_worker_says_so(folder: Path, tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if os.environ.get('RANK') == '1':\n"
        "    sys.path.insert(0, os.environ['CODE'])\n"
        "    from data.dataset import ImageDataset\n"
        "    ImageDataset.__getitems__ = lambda self, keys: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "tests")])
    flags = "-a toy_models:tiny -b 4 --num-classes 2 -j 1 --output-dir run"
    done = launch(tmp_path, 2, folder, *flags.split(), env={"PYTHONPATH": paths, "CODE": str(ROOT)}, timeout=120)
    assert done.returncode == 1
    assert done.stderr.count("error: a loader process (pid ") == 1
    assert "Traceback" not in done.stderr.split("torch/distributed/elastic")[0]
    why = json.loads((tmp_path / "run/status.json").read_text())["why"]
    assert why.startswith("a loader process (pid ")


def raised(text: str, cause: Exception | None = None) -> Exception:
    try:
        raise RuntimeError(text) from cause
    except RuntimeError as error:
        return error


def test_a_bus_error_is_about_shared_memory():
    error = raised("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that")
    assert "/dev/shm" in str(loader_failure(error))


def test_a_worker_that_just_ended():
    error = raised("DataLoader worker (pid(s) 7, 8) exited unexpectedly")
    assert "a loader process (pid 7, 8) ended unexpectedly: " in str(loader_failure(error))
    killed = raised(str(error), RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated. "))
    assert "(signal 15)" in str(loader_failure(killed))


def test_memory_is_blamed_for_a_kill_alone():
    crashed = raised("DataLoader worker (pid 7) is killed by signal: Segmentation fault. ")
    assert "memory" not in str(loader_failure(crashed))
    assert "-j 0" in str(loader_failure(crashed))


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch):
    for error in (
        raised("Caught ZeroDivisionError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):"),
        OSError(errno.ENOSPC, "No space left on device", "runs/x/metrics.jsonl"),
        KeyError("x"),
    ):
        assert loader_failure(error) is None
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(loader_failures, "_is_full", lambda: False)
    assert loader_failure(full) is None
    monkeypatch.setattr(loader_failures, "_is_full", lambda: True)
    assert loader_failure(full) is not None

"""A disk that is full at some moment of a run, or read-only at its start: a tmpfs of 600 KiB."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import make_folder, rows
from test_resume import load

from trainer.checkpoint_folder import newest_whole
from trainer.step import Stepper

FLAGS = ["-a", "toy_models:dropping", "--epochs", 2]


def mount(*arguments: object) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mount("-t", "tmpfs", "-o", "size=600k", "tmpfs", path)
    yield path
    subprocess.run(["umount", "-l", path], check=True)


def fill(disk: Path) -> None:
    with open(disk / "fill", "wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            return


def at_step(monkeypatch: pytest.MonkeyPatch, actions: dict) -> None:
    original = Stepper.step

    def watched(self, at, *rest):
        actions.get(at, lambda: None)()
        return original(self, at, *rest)

    monkeypatch.setattr(Stepper, "step", watched)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error.splitlines()[0]


def test_a_start_on_a_full_disk_is_a_sentence(run, capsys, disk):
    fill(disk)
    assert run(*FLAGS, "--output-dir", disk / "run") == 1
    assert one_line(capsys).startswith(f"error: cannot write into the run folder {disk}/run: No space left on device")


def test_a_resume_on_a_full_disk_takes_nothing_away(run, capsys, disk):
    flags = [*FLAGS, "--output-dir", disk / "run", "--resume", "auto"]
    assert run(*flags, "--stop-after-epochs", 1) == 0
    fill(disk)
    capsys.readouterr()
    assert run(*flags) == 1
    assert "cannot write into the run folder" in one_line(capsys)
    (disk / "fill").unlink()
    assert run(*flags) == 0
    assert load(str(disk / "run"))["step"] == 8
    assert [row["step"] for row in rows(disk / "run")] == list(range(1, 9))


def test_a_read_only_disk_is_validated_from_and_a_resume_is_a_sentence(run, capsys, disk):
    assert run(*FLAGS, "--output-dir", disk / "run", "--stop-after-epochs", 1) == 0
    mount("-o", "remount,ro", disk)
    capsys.readouterr()
    assert run("--resume", disk / "run", base="") == 2
    assert "Read-only file system" in one_line(capsys)
    assert run("-e", "--resume", disk / "run", "--output-dir", "eval", base="") == 0


def test_a_disk_that_stays_full_ends_the_run_and_its_status_says_why(run, capsys, monkeypatch, disk):
    at_step(monkeypatch, {2: lambda: fill(disk)})
    assert run(*FLAGS, "--output-dir", disk / "run", "--save-every-steps", 1) == 1
    assert "3 saves in a row failed" in capsys.readouterr().err
    status = json.loads((disk / "run/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    assert "No space left on device" in status["why"]
    assert newest_whole(disk / "run/checkpoints")[1]["step"] in (1, 2)
    assert not list(disk.rglob("*.tmp"))


def test_a_disk_that_was_full_for_a_while_costs_nothing(run, capsys, monkeypatch, disk):
    """Checkpoints, records, step times and the list of bad images."""
    make_folder(Path("data"), train=16, val=4)
    at_step(monkeypatch, {2: lambda: fill(disk), 6: (disk / "fill").unlink})
    Path("data/train/a/003.jpg").write_bytes(b"no image")
    flags = ["data", *FLAGS, "-b", 4, "-j", 0, "--image-size", 32, "-p", 1, "--step-times", "--bad-images", "skip"]
    flags += ["--save-every-steps", 1, "--on-save-error", "continue", "--output-dir", disk / "run"]
    assert run(*flags, base="") == 0
    assert "Traceback" not in capsys.readouterr().err
    assert load(str(disk / "run"))["step"] == 16
    assert [row["step"] for row in rows(disk / "run")] == list(range(1, 17))
    assert [json.loads(line)["epoch"] for line in (disk / "run/step_times.jsonl").read_text().splitlines()] == [0, 1]
    assert "003.jpg" in (disk / "run/bad_images.txt").read_text()

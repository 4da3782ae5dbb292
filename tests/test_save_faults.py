"""A crash at any point of a save leaves a checkpoint to go on from; damage is found before a file is taken."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers import assert_same_end, load

from trainer import checkpoint
from trainer.checkpoint import damage_of, read_checkpoint, write_checkpoint
from trainer.checkpoint_folder import CheckpointFolder, newest_whole, remove_leftovers
from trainer.errors import UserError, os_reason

CRASHED = 9


def content(step: int) -> dict:
    return {
        "format": 1, "config": {}, "resolved": {"num_classes": 2}, "optimizer": {}, "precision": {}, "rng": [], "epoch": 0, "step": step,
        "state_dict": {"weight": torch.full((5000,), float(step))},
    }  # fmt: skip


def crash(*_: object) -> None:
    os._exit(CRASHED)


def in_a_process_of_its_own(body: Callable[[], None]) -> int:
    """A crash is the end of a process: no handler and no `finally` runs."""
    child = os.fork()
    if child == 0:
        try:
            body()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def half(save: Callable[..., None]) -> Callable[..., None]:
    def written(what: object, stream: object) -> None:
        class Cut:
            def write(self, data: bytes) -> int:
                stream._stream.write(bytes(data)[: len(bytes(data)) // 2])
                stream._stream.flush()
                os._exit(CRASHED)

            def flush(self) -> None: ...

        save(what, Cut())

    return written


def crash_before_write() -> None:
    torch.save = crash


def crash_half_written() -> None:
    torch.save = half(torch.save)


def crash_before_fsync() -> None:
    os.fsync = crash


def crash_before_verification() -> None:
    checkpoint.damage_of = crash


def crash_before_any_name() -> None:
    checkpoint._link = crash


def crash_before_the_last_rename() -> None:
    original = os.replace

    def replace(source: object, target: object) -> None:
        crash() if str(target).endswith("last.pt") else original(source, target)

    os.replace = replace


def crash_before_the_folder_is_synced() -> None:
    checkpoint.sync_folder = crash


POINTS = {
    crash_before_write: 1,
    crash_half_written: 1,
    crash_before_fsync: 1,
    crash_before_verification: 1,
    crash_before_any_name: 1,
    crash_before_the_last_rename: 2,
    crash_before_the_folder_is_synced: 2,
}


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.__name__)
def test_a_crash_leaves_the_old_checkpoint_or_the_new_one(tmp_path, point):
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=3)
    folder.write(content(1), is_best=True)

    def save_and_crash() -> None:
        point()
        folder.write(content(2), is_best=False)

    assert in_a_process_of_its_own(save_and_crash) == CRASHED
    path, found, lines = newest_whole(folder.path)
    assert (found["step"], lines) == (POINTS[point], [])
    assert bool((found["state_dict"]["weight"] == found["step"]).all())
    assert newest_whole(folder.path)[0] == path
    remove_leftovers(tmp_path)
    assert not list(folder.path.glob(".*"))
    folder.write(content(3), is_best=False)
    assert newest_whole(folder.path)[1]["step"] == 3


def test_bit_flips_that_change_a_value_are_found(tmp_path):
    path = tmp_path / "x.pt"
    write_checkpoint(path, content(7))
    whole, expected = path.read_bytes(), torch.load(path, weights_only=True)
    draw = random.Random(0)
    missed = 0
    for _ in range(100):
        at = draw.randrange(len(whole) * 8)
        flipped = bytearray(whole)
        flipped[at // 8] ^= 1 << at % 8
        path.write_bytes(flipped)
        if damage_of(path) is None:  # padding between records
            missed += 1
            assert torch.equal(
                torch.load(path, weights_only=True)["state_dict"]["weight"], expected["state_dict"]["weight"]
            )
    assert missed < 20


def test_a_flipped_bit_that_says_encrypted_is_damage(tmp_path):
    """Of which zipfile tells with a plain RuntimeError."""
    path = tmp_path / "checkpoints" / "last.pt"
    path.parent.mkdir()
    write_checkpoint(path, content(7))
    flipped = bytearray(path.read_bytes())
    flipped[flipped.index(b"PK\x01\x02") + 8] ^= 1
    path.write_bytes(flipped)
    assert "encrypted" in (damage_of(path) or "")
    assert newest_whole(path.parent)[0] is None
    with pytest.raises(UserError, match="encrypted"):
        read_checkpoint(path)


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path, monkeypatch):
    path = tmp_path / "last.pt"
    write_checkpoint(path, content(7))

    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("trainer.checkpoint.read_tensor_file", fail)
    with pytest.raises(UserError, match="Input/output error"):
        read_checkpoint(path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_truncated_files_are_found(tmp_path, share):
    path = tmp_path / "x.pt"
    write_checkpoint(path, content(7))
    os.truncate(path, int(path.stat().st_size * share))
    assert damage_of(path) is not None


def test_what_reads_back_otherwise_replaces_nothing(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=1)
    folder.write(content(1), is_best=True)
    original = torch.save

    def flipped(what: object, stream: object) -> None:
        original(what, stream)
        stream._stream.seek(3000)
        stream._stream.write(b"\xff" * 40)

    monkeypatch.setattr(torch, "save", flipped)
    with pytest.raises(OSError, match="read back"):
        folder.write(content(2), is_best=True)
    assert sorted(path.name for path in folder.path.iterdir()) == ["best.pt", "last.pt", "step_00000001.pt"]
    assert load(str(tmp_path))["step"] == load(str(tmp_path), "best.pt")["step"] == 1


def test_a_failed_save_is_told_by_the_name_that_was_to_be_written(tmp_path, monkeypatch):
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=1)
    folder.path.mkdir()
    (folder.path / "last.pt").mkdir()
    with pytest.raises(OSError, match="directory") as caught:
        folder.write(content(1), is_best=False)
    assert os_reason(caught.value).endswith(f": {folder.path / 'last.pt'}")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="space") as caught:
        folder.write(content(2), is_best=False)
    assert os_reason(caught.value) == f"No space left on device: {folder.path / 'last.pt'}"


def flip_weights(path: Path) -> None:
    """In a copy of its own, since other names share the bytes."""
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 255
    path.unlink()
    path.write_bytes(whole)


def test_auto_passes_damaged_files_over_by_name(run, capsys):
    """R86."""
    flags = ["--epochs", 2, "--save-every-steps", 2, "--output-dir", "run", "--resume", "auto"]
    assert run("--epochs", 2, "--output-dir", "straight") == 0
    assert run(*flags, "--stop-after-steps", 7) == 0
    for name in ("last.pt", "step_00000007.pt", "step_00000006.pt"):
        flip_weights(Path("run/checkpoints", name))
    capsys.readouterr()
    assert run(*flags) == 0
    output = capsys.readouterr().out
    for name in ("last.pt", "step_00000007.pt", "step_00000006.pt"):
        assert [name in line for line in output.splitlines() if "skipping" in line].count(True) == 1
    assert "loading checkpoint 'run/checkpoints/step_00000004.pt'" in output
    assert_same_end("straight", "run")


@pytest.mark.parametrize("where", [["--output-dir", "run"], []])
def test_auto_starts_anew_where_nothing_is_whole_and_says_so(run, capsys, where):
    flags = ["--epochs", 2, "--resume", "auto", *where]
    assert run(*flags, "--stop-after-epochs", 1) == 0
    (folder,) = Path().glob("run*/checkpoints") if where else Path("runs").glob("*/checkpoints")
    for path in folder.iterdir():
        os.truncate(path, 1000)
    capsys.readouterr()
    assert run(*flags) == 0
    output = capsys.readouterr().out
    (line,) = [line for line in output.splitlines() if line.startswith("skipping ") and "last.pt" in line]
    assert "last.pt: cannot be read: it is damaged or of another kind" in line
    assert "starting from scratch" in output
    if where:
        assert load("run")["epoch"] == 2


def test_auto_goes_to_an_older_run_with_a_whole_checkpoint(run, capsys):
    for _ in range(2):
        assert run("--epochs", 2, "--stop-after-epochs", 1) == 0
    older, newer = sorted(Path("runs").iterdir(), key=lambda path: (path / "status.json").stat().st_mtime_ns)
    for path in (newer / "checkpoints").iterdir():
        path.write_bytes(b"nothing")
    capsys.readouterr()
    assert run("--epochs", 2, "--resume", "auto") == 0
    assert f"going on with {older}" in capsys.readouterr().out


def test_leftovers_are_removed_at_the_start(run):
    assert run("--epochs", 2, "--stop-after-epochs", 1, "--output-dir", "run") == 0
    for name in ("checkpoints/.last.pt.tmp", ".status.json.tmp"):
        Path("run", name).write_bytes(b"half")
    assert run("--resume", "run", base="") == 0
    assert not list(Path("run").rglob("*.tmp"))


def test_the_newest_step_files_stay_and_best_survives(run):
    assert run("--epochs", 2, "--save-every-steps", 1, "--keep-checkpoints", 2, "--output-dir", "run") == 0
    names = sorted(path.name for path in Path("run/checkpoints").iterdir())
    assert names == ["best.pt", "last.pt", "step_00000007.pt", "step_00000008.pt"]
    assert Path("run/checkpoints/last.pt").samefile("run/checkpoints/step_00000008.pt")
    assert load("run", "best.pt")["best_acc1"] == load("run")["best_acc1"]


def test_files_of_a_course_that_was_left_go(run):
    assert run("--epochs", 2, "--save-every-steps", 1, "--keep-checkpoints", 9, "--output-dir", "run") == 0
    shutil.copy("run/checkpoints/step_00000003.pt", "run/checkpoints/mine.pt")
    assert run("--resume", "run/checkpoints/mine.pt", "--stop-after-steps", 2, base="") == 0
    steps = sorted(path.name for path in Path("run/checkpoints").glob("step_*"))
    assert steps == [f"step_{number:08d}.pt" for number in range(1, 6)]
    assert load("run")["step"] == 5

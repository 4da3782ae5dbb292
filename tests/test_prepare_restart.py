"""scripts/prepare_folder.py in several processes; stopped, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import write_image
from PIL import Image
from test_prepare_folder import ROOT, Shown, last_line, prepare, spoil, tree

sys.path.insert(0, str(ROOT / "scripts"))

from prepared import RECORD, claim, read_record  # noqa: E402
from resize_image import unfinished_name  # noqa: E402


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_second_start_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown, error: BaseException
) -> None:
    for number in range(6):
        write_image(tmp_path / f"src/a/{number}.jpg", size=40, seed=number)
    real, calls = os.replace, []

    def fail(old: Any, new: Any) -> None:
        calls.append(str(new))
        if len(calls) > 4:  # the first is DST's own note
            raise error
        real(old, new)

    monkeypatch.setattr(os, "replace", fail)
    assert prepare(tmp_path / "src", tmp_path / "dst") == (130 if isinstance(error, KeyboardInterrupt) else 2)
    assert len(capsys.readouterr().err.splitlines()) == 1
    monkeypatch.setattr(os, "replace", real)
    assert sorted(tree(tmp_path / "dst")) == ["a/0.jpg", "a/1.jpg", "a/2.jpg"]
    assert len(os.listdir(tmp_path / "dst/a")) == 3
    assert prepare(tmp_path / "src", tmp_path / "dst") == 0
    assert "3 written, 0 copied, 3 skipped, 0 bad" in last_line(capsys)
    assert prepare(tmp_path / "src", tmp_path / "once", "--quality", 92) == 0
    assert tree(tmp_path / "once") == tree(tmp_path / "dst")


def test_a_changed_source_is_done_again(tmp_path: Path, capsys: Shown) -> None:
    path = write_image(tmp_path / "src/a/0.jpg", size=40)
    assert prepare(tmp_path / "src", tmp_path / "dst") == 0
    write_image(path, size=60, colour=(255, 0, 0))
    os.utime(path, (1000, 1000))  # an older file put in its place counts too
    assert prepare(tmp_path / "src", tmp_path / "dst") == 0
    assert "1 written" in last_line(capsys)
    path.write_bytes(b"bad")
    assert prepare(tmp_path / "src", tmp_path / "dst") == 5
    assert sorted(tree(tmp_path / "dst")) == ["bad_images.txt"]


@pytest.mark.parametrize("how", ["replaced", "written over"])
def test_a_source_of_the_same_size_and_date_is_not_taken_for_the_old_one(
    tmp_path: Path, capsys: Shown, how: str
) -> None:
    path = write_image(tmp_path / "src/a/0.bmp", size=40)
    status = path.stat()
    assert prepare(tmp_path / "src", tmp_path / "dst") == 0
    before = tree(tmp_path / "dst")
    other = write_image(tmp_path / "0.bmp", size=40, colour=(255, 0, 0))
    if how == "replaced":
        other.replace(path)
    else:
        path.write_bytes(other.read_bytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert prepare(tmp_path / "src", tmp_path / "dst") == 0
    assert "1 written" in last_line(capsys)
    assert tree(tmp_path / "dst") != before
    (tmp_path / "dst/a/0.jpg").write_bytes(b"cut")  # nor is a target that is not as it was made
    assert prepare(tmp_path / "src", tmp_path / "dst") == 0
    assert "1 written" in last_line(capsys)


def test_what_has_lost_its_source_is_counted_and_removed_on_request_alone(tmp_path: Path, capsys: Shown) -> None:
    source, out = tmp_path / "src", tmp_path / "dst"
    for name in ("a/0.jpg", "a/1.jpg", "b/deep/2.png", "b/deep/3.jpg"):
        write_image(source / name, size=40)
    assert prepare(source, out) == 0
    (out / "a/mine.jpg").write_text("not made here")
    (out / "b/deep/3.jpg").write_text("changed since")
    (source / "a/0.jpg").rename(source / "a/moved.jpg")
    for name in ("2.png", "3.jpg"):
        (source / "b/deep" / name).unlink()
    capsys.readouterr()
    assert prepare(source, out) == 0
    shown = capsys.readouterr()
    assert "1 written, 0 copied, 1 skipped, 0 bad" in shown.out
    assert shown.err == f"2 files of {out} without a source any more, such as a/0.jpg: --prune removes such files\n"
    assert len(tree(out)) == 6
    assert prepare(source, out, "--prune") == 0
    assert capsys.readouterr().err == "removed 2 files without a source, such as a/0.jpg\n"
    assert sorted(tree(out)) == ["a/1.jpg", "a/mine.jpg", "a/moved.jpg", "b/deep/3.jpg"]
    (out / "b/deep/3.jpg").unlink()
    write_image(source / "b/deep/2.jpg", size=40)
    assert prepare(source, out) == 0
    (source / "b/deep/2.jpg").unlink()
    assert prepare(source, out, "--prune") == 0
    assert not (out / "b").exists()  # an empty class would be refused by a training


def test_a_damaged_record_makes_files_anew_and_names_none_outside(tmp_path: Path, capsys: Shown) -> None:
    write_image(tmp_path / "src/a/0.jpg", size=40)
    write_image(tmp_path / "src/a/1.jpg", size=40)
    assert prepare(tmp_path / "src", tmp_path / "dst") == 0
    record = tmp_path / "dst" / RECORD
    lines = record.read_bytes().splitlines(keepends=True)
    (tmp_path / "mine").touch()
    outside = ['["../mine", 0, 0]', f'["{tmp_path}/mine", 0, 0]', "[1, 2, 3]", "3", "{}", '["a", 0]']
    record.write_bytes(lines[0] + "\n".join(outside).encode() + b"\n\xff\n" + lines[1][:20])
    assert prepare(tmp_path / "src", tmp_path / "dst", "--prune") == 0
    assert "1 written, 0 copied, 1 skipped" in last_line(capsys)
    assert (tmp_path / "mine").exists()
    assert sorted(read_record(tmp_path / "dst")) == ["a/0.jpg", "a/1.jpg"]
    assert len(record.read_bytes().splitlines()) == 2


def command(source: Path, out: Path) -> list[str]:
    script = str(ROOT / "scripts/prepare_folder.py")
    return [sys.executable, script, str(source), str(out), "--short-side", "16", "--workers", "2"]


def test_two_workers_write_what_one_does(tmp_path: Path) -> None:
    spoil(tmp_path / "src")
    for number in range(10):
        write_image(tmp_path / f"src/b/{number}.png", size=40, seed=number)
    assert prepare(tmp_path / "src", tmp_path / "one") == 5
    done = subprocess.run(command(tmp_path / "src", tmp_path / "two"), capture_output=True, text=True, timeout=120)
    assert done.returncode == 5
    assert "11 written, 0 copied, 0 skipped, 5 bad" in done.stdout
    assert tree(tmp_path / "one") == tree(tmp_path / "two")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_after_a_signal_nothing_runs_on_and_the_next_start_completes(tmp_path: Path, number: signal.Signals) -> None:
    source, out = tmp_path / "src", tmp_path / "dst"
    for image in range(60):
        write_image(source / f"{image:03d}.png", size=40, seed=image)
    out.mkdir()
    claim(out, {"source": str(source.resolve()), "short_side": 16, "quality": 92})
    # Whoever writes to a pipe waits for its reader: the worker that has the first images gets no further.
    pipe = unfinished_name(out / "000.jpg")
    os.mkfifo(pipe)
    # A session of its own is a group that can be signalled as a terminal does.
    first = subprocess.Popen(command(source, out), stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not list(out.glob("*.jpg")):  # the other worker's, so the first images are taken
        assert first.poll() is None
        time.sleep(0.01)
    if number == signal.SIGINT:
        os.killpg(first.pid, number)
        os.close(os.open(pipe, os.O_RDONLY))  # the image in work, which a first Ctrl-C waits for, fails
    else:
        first.kill()
    # Ends when the last process that holds the pipe of its errors is gone.
    _, shown = first.communicate(timeout=120)
    if number == signal.SIGINT:
        assert (first.returncode, shown) == (130, "prepare_folder: interrupted\n")
    else:
        pipe.unlink()
        pipe.write_bytes(b"half an image")
    there = len(list(out.glob("*.jpg")))
    assert 0 < there < 60
    for path in out.glob("*.jpg"):
        Image.open(path).load()
    noted = len(read_record(out))
    assert there - 1 <= noted <= there  # killed between an image and its line in the record
    again = subprocess.run(command(source, out), capture_output=True, text=True, timeout=120)
    assert f"{60 - noted} written, 0 copied, {noted} skipped, 0 bad" in again.stdout
    assert len(os.listdir(out)) == 62  # the settings and the record too

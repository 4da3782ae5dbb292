"""The kept listing of a folder: when it is taken, when it is not, and that no run fails for it."""

from __future__ import annotations

import contextlib
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import make_folder, write_image

from data import cache_files
from data.folder import FolderError, FolderIndex, scan_data_dir
from data.folder_cache import cache_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Folders of a test are always newer than two seconds.
    monkeypatch.setattr(cache_files, "UNSETTLED_NS", -(10**12))
    made = make_folder(tmp_path / "set", train=3, val=2, size=8)
    write_image(made / "train/a/below/x.jpg", size=8)
    (made / "train/a/notes.txt").touch()
    with contextlib.suppress(OSError):  # not every file system takes names that are no UTF-8
        (made / os.fsdecode(b"val/b/caf\xe9.jpg")).touch()
    return made


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders that are listed from now on."""
    seen: list[str] = []
    scandir, listdir = os.scandir, os.listdir
    monkeypatch.setattr(os, "scandir", lambda path=".": (seen.append(str(path)), scandir(path))[1])
    monkeypatch.setattr(os, "listdir", lambda path=".": (seen.append(str(path)), listdir(path))[1])
    return seen


def content(indexes: tuple[FolderIndex, FolderIndex]) -> list[object]:
    return [
        (index.folder, index.classes, list(index.paths), index.labels.tolist(), str(index.labels.dtype), index.ignored)
        for index in indexes
    ]


def test_a_second_start_lists_no_folder(folder: Path, looks: list[str]):
    """R101."""
    first = content(scan_data_dir(str(folder)))
    assert f"{folder}/train/a/below" in looks
    looks.clear()
    assert content(scan_data_dir(str(folder))) == first
    assert looks == []


def test_a_kept_listing_serves_every_name_of_the_folder(folder: Path, looks: list[str]):
    scan_data_dir(str(folder))
    looks.clear()
    os.symlink(folder, folder.parent / "link")
    train, _ = scan_data_dir(str(folder.parent / "link"))
    assert looks == []
    assert train.name(0) == str(folder.parent / "link/train/a/000.jpg")


@pytest.mark.parametrize("at", ["train/a", "train/a/below", "train", "val/b"])
def test_a_file_more_is_seen_though_the_folders_date_was_set_back(folder: Path, at: str):
    before = [len(index) + sum(index.ignored.values()) for index in scan_data_dir(str(folder))]
    status = os.stat(folder / at)
    (folder / at / "new.jpg").touch()
    os.utime(folder / at, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = [len(index) + sum(index.ignored.values()) for index in scan_data_dir(str(folder))]
    assert sum(after) == sum(before) + 1


def test_a_class_more_or_less_is_seen(folder: Path):
    scan_data_dir(str(folder))
    write_image(folder / "train/c/x.jpg", size=8)
    assert scan_data_dir(str(folder))[0].classes == ("a", "b", "c")
    (folder / "train/c/x.jpg").unlink()
    with pytest.raises(FolderError, match="for class c"):
        scan_data_dir(str(folder))
    (folder / "train/c").rmdir()
    assert scan_data_dir(str(folder))[0].classes == ("a", "b")


def test_rescan_lists_anew_and_keeps_what_it_found(folder: Path, looks: list[str]):
    scan_data_dir(str(folder))
    written = cache_file(f"{folder}/train").stat().st_ino
    looks.clear()
    scan_data_dir(str(folder), rescan=True)
    assert {f"{folder}/train/a", f"{folder}/val/a"} <= set(looks)
    assert cache_file(f"{folder}/train").stat().st_ino != written


def test_a_folder_changed_just_before_the_listing_is_not_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A file added in the same tick of the clock would leave no trace in the folder's date."""
    monkeypatch.setattr(cache_files, "UNSETTLED_NS", 10**12)
    scan_data_dir(str(folder))
    assert not cache_file(f"{folder}/train").exists()


def test_two_folders_have_two_files_in_the_users_cache_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    scan_data_dir(str(folder))
    kept = folder.parent / "cache/channels-last-imagenet-training/index"
    assert sorted(kept.iterdir()) == sorted(cache_file(f"{folder}/{split}") for split in ("train", "val"))
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        monkeypatch.setenv("HOME", str(folder.parent))
        assert str(cache_file("x")).startswith(f"{folder.parent}/.cache/channels-last-imagenet-training/")


def damage(file: Path, how: str) -> None:
    if how == "empty":
        file.write_bytes(b"")
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-200])
    elif how == "noise":
        file.write_bytes(bytes(range(256)) * 8)
    elif how == "flipped":
        content = bytearray(file.read_bytes())
        content[len(content) // 3] ^= 0xFF
        file.write_bytes(bytes(content))
    elif how == "folder":
        file.unlink()
        file.mkdir()
    elif how == "part":
        with zipfile.ZipFile(file) as archive:
            parts = {name: archive.read(name) for name in archive.namelist() if name != "owners.npy"}
        with zipfile.ZipFile(file, "w") as archive:
            for name, part in parts.items():
                archive.writestr(name, part)
    else:
        with np.load(file) as kept:
            arrays = dict(kept)
        if how == "version":
            arrays["facts"] = np.frombuffer(arrays["facts"].tobytes().replace(b'"format": 2', b'"format": 1'), np.uint8)
        elif how == "labels":
            arrays["owners"] = arrays["owners"] + np.int32(7)
        elif how == "offsets":
            arrays["file_offsets"] = arrays["file_offsets"][::-1].copy()
        elif how == "pickle":
            arrays["owners"] = np.array([print], dtype=object)
        with open(file, "wb") as stream:
            np.savez(stream, **arrays)


HOW = ["empty", "cut", "noise", "flipped", "folder", "part", "version", "labels", "offsets", "pickle"]


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_or_foreign_file_is_listed_over(folder: Path, looks: list[str], how: str):
    first = content(scan_data_dir(str(folder)))
    damage(cache_file(f"{folder}/train"), how)
    looks.clear()
    assert content(scan_data_dir(str(folder))) == first
    assert f"{folder}/train/a" in looks
    if how != "folder":
        looks.clear()
        assert content(scan_data_dir(str(folder))) == first
        assert looks == []  # mended


def test_a_cache_that_cannot_be_written_fails_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder.parent / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent / "file"))
    first = content(scan_data_dir(str(folder)))
    assert content(scan_data_dir(str(folder))) == first


def test_a_failed_write_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def full(stream, **arrays):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    scan_data_dir(str(folder))
    assert list(cache_file(f"{folder}/train").parent.iterdir()) == []


def test_a_folder_that_vanished_since_is_listed_anew(folder: Path):
    outside = folder.parent / "outside"
    write_image(outside / "x.jpg", size=8)
    os.symlink(outside, folder / "train/a/more")
    assert len(scan_data_dir(str(folder))[0]) == 8
    (outside / "x.jpg").unlink()
    outside.rmdir()
    train, _ = scan_data_dir(str(folder))
    assert len(train) == 7
    assert train.ignored["broken links"] == 1


@pytest.mark.parametrize("at", ["train/a/later.jpg", "train/later"])
def test_a_listing_with_a_broken_link_is_not_kept(folder: Path, at: str):
    """What it leads to may come back, a disk that was not mounted, without a trace in the folder."""
    os.symlink(folder.parent / "elsewhere", folder / at)
    assert len(scan_data_dir(str(folder))[0]) == 7
    made = write_image(folder.parent / "made/x.jpg", size=8)
    (made.parent if at == "train/later" else made).rename(folder.parent / "elsewhere")
    assert len(scan_data_dir(str(folder))[0]) == 8

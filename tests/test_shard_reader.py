"""Bytes out of tar files: by several processes at once, with few files open, from a file that is no more what it was."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from shard_cases import in_children, write_tar

from data import shard_files
from data.shards import open_shards


def test_forked_processes_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_files, "MOST_OPEN", 2)
    data = {f"a/{n}.jpg": bytes([n]) * (1000 + n) for n in range(40)}
    for shard in range(4):
        write_tar(tmp_path / f"{shard}.tar", list(data.items())[shard::4])
    train, _ = open_shards(str(tmp_path / "*.tar"), str(tmp_path / "0.tar"))
    wanted = [data[train.name(i).split("!")[1]] for i in range(40)]
    assert train.read(0) == wanted[0]  # the parent has a file open when it forks
    forward = list(range(40)) * 20
    both = in_children(train, [forward, forward[::-1]])
    assert both[0] == wanted * 20
    assert both[1] == (wanted * 20)[::-1]
    assert len(train.reader._opened.local) == 1


def test_open_files_are_bounded(tmp_path: Path) -> None:
    for shard in range(20):
        write_tar(tmp_path / f"{shard:02d}.tar", [(f"a/{shard:02d}.jpg", b"%d" % shard)])
    train, _ = open_shards(str(tmp_path / "*.tar"), str(tmp_path / "00.tar"))
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert [train.read(i) for i in range(20)] == [b"%d" % n for n in range(20)]
    assert len(train.reader._opened.local) == shard_files.MOST_OPEN
    if before:
        assert len(os.listdir("/proc/self/fd")) - before <= shard_files.MOST_OPEN


def test_a_shard_that_shrank_or_went_is_an_oserror(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "w.tar", [("a/1.jpg", b"x" * 100), ("b/1.jpg", b"")])
    train, _ = open_shards(shard, shard)
    os.truncate(shard, 550)
    with pytest.raises(OSError, match="38 of 100 bytes"):
        train.read(0)
    again = pickle.loads(pickle.dumps(train))
    os.unlink(shard)
    with pytest.raises(FileNotFoundError):
        again.read(0)


def test_a_pickle_is_small_and_reads(tmp_path: Path) -> None:
    shard = write_tar(tmp_path / "w.tar", [(f"a/{n:05d}.jpg", b"%d" % n) for n in range(1000)])
    train, _ = open_shards(shard, shard)
    train.read(0)
    packed = pickle.dumps(train)
    assert len(packed) < 1000 * (11 + 8 + 8 + 8 + 4 + 4 + 2) + 2000
    again = pickle.loads(packed)
    assert (again.read(7), again.name(7), again.classes) == (train.read(7), train.name(7), train.classes)

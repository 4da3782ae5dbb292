"""The kept tables of tar files: when they are taken, when not, and that no run fails for them."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from shard_cases import TWO, content, listings, write_tar

from data import cache_files
from data.cache_files import cache_path
from data.shards import open_shards


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own; tar files of a test are always newer than two seconds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(cache_files, "UNSETTLED_NS", -(10**12))
    return cache_path("shards", "").parent


def test_headers_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = write_tar(tmp_path / "t.tar", [*TWO, ("a/\udcff.jpg", b"odd"), ("a/.x", b"")])
    val = write_tar(tmp_path / "v.tar", [("1.jpg", b"1"), ("1.cls", b"b")])
    seen = listings(monkeypatch)
    first = open_shards(train, val)
    assert sorted(seen) == [train, val]
    second = open_shards(train, val)
    assert sorted(seen) == [train, val]
    for old, new in zip(first, second, strict=True):
        assert content(old) == content(new)
        assert (old.classes, old.describe()) == (new.classes, new.describe())
    open_shards(train, val, rescan=True)
    assert len(seen) == 4
    write_tar(Path(val), [("a/1.jpg", b"newer")])
    assert open_shards(train, val)[1].read(0) == b"newer"
    assert seen[4:] == [val]


def test_a_damaged_cache_is_as_good_as_none(tmp_path: Path, cache: Path) -> None:
    shard = write_tar(tmp_path / "t.tar", TWO)
    wanted = content(open_shards(shard, shard)[0])
    (kept,) = cache.iterdir()
    whole = kept.read_bytes()
    random = np.random.default_rng(1)
    for number in range(60):
        damaged = bytearray(whole)
        damaged[random.integers(len(whole))] ^= 1 << int(random.integers(8))
        kept.write_bytes([damaged, whole[: random.integers(len(whole))]][number % 2])
        assert content(open_shards(shard, shard)[0]) == wanted
    kept.write_bytes(pickle.dumps({"not": "ours"}))
    assert content(open_shards(shard, shard)[0]) == wanted
    assert [path.name for path in cache.iterdir()] == [kept.name]


def test_a_cache_folder_that_cannot_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    shard = write_tar(tmp_path / "t.tar", TWO)
    assert len(open_shards(shard, shard)[0]) == 2


def test_a_table_of_a_tar_that_was_replaced_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same size, and its date set back, as copying tools do."""
    shard = write_tar(tmp_path / "t.tar", TWO)
    status = os.stat(shard)
    seen = listings(monkeypatch)
    open_shards(shard, shard)
    write_tar(tmp_path / "new.tar", [("b/2.jpg", b"b2"), ("c/1.jpg", b"c1")])
    os.utime(tmp_path / "new.tar", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (tmp_path / "new.tar").stat().st_size == status.st_size
    (tmp_path / "new.tar").replace(shard)
    seen.clear()
    assert open_shards(shard, shard)[0].classes == ("b", "c")
    assert seen
    # Written over in place: the same inode.
    write_tar(Path(shard), [("a/2.jpg", b"a2"), ("d/1.jpg", b"d1")])
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert open_shards(shard, shard)[0].classes == ("a", "d")


def test_a_tar_written_just_now_is_listed_again(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change in the same tick of the clock would leave no trace in the file's times."""
    monkeypatch.setattr(cache_files, "UNSETTLED_NS", 10**12)
    shard = write_tar(tmp_path / "t.tar", TWO)
    open_shards(shard, shard)
    assert not cache.exists()


def test_a_relative_cache_home_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    shard = write_tar(tmp_path / "t.tar", TWO)
    open_shards(shard, shard)
    assert not Path("relative").exists()
    assert len(list(Path("home/.cache/channels-last-imagenet-training/shards").iterdir())) == 1

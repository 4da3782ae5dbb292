"""Tar files that cannot be trained on: members without sense or that lead elsewhere, damage, other kinds of archive."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from shard_cases import TWO, Member, refused, special, tar_bytes, write_tar

from data.folder import FolderError
from data.shards import open_shards


@pytest.mark.parametrize(
    ("members", "part"),
    [
        ([("1.jpg", b"1"), ("1.cls", b"0"), ("2.jpg", b"2")], "2.jpg has no 2.cls"),
        ([("1.jpg", b"1"), ("1.png", b"1"), ("1.cls", b"0")], "two images for 1.cls"),
        ([("1.jpg", b"1"), ("1.cls", b"")], "1.cls names no class"),
        ([("1.jpg", b"1"), ("1.cls", b"\xff\x00")], "1.cls names no class"),
        ([("1.jpg", b"1"), ("1.cls", b"x" * 2000)], "1.cls names no class"),
        ([("1.jpg", b"1"), ("1.cls", b"x"), ("1.cls", b"y")], "1.cls twice"),
        ([("a/1.jpg", b"1"), ("./a/1.jpg", b"2")], "a/1.jpg twice"),
        ([("1.jpg", b"1"), ("a/x.txt", b"1")], "no image in"),
        ([], "no image in"),
        ([("train/a/1.jpg", b"1"), ("train/b/1.jpg", b"1")], "lie in folders below train/"),
    ],
)
def test_members_that_make_no_sense(tmp_path: Path, members: list[Member], part: str) -> None:
    assert part in refused(write_tar(tmp_path / "w.tar", members))


@pytest.mark.parametrize(
    "member",
    [
        ("../x.jpg", b"x"),
        ("a/../../x.jpg", b"x"),
        ("/abs.jpg", b"x"),
        special("a/x.jpg", tarfile.SYMTYPE, "/etc/passwd"),
        special("a/x.jpg", tarfile.LNKTYPE, "a/1.jpg"),
        special("a/x.jpg", tarfile.CHRTYPE),
        special("a/x.jpg", tarfile.BLKTYPE),
        special("a/x.jpg", tarfile.FIFOTYPE),
    ],
    ids=["up", "up below", "absolute", "symlink", "hardlink", "character device", "block device", "fifo"],
)
def test_members_that_could_reach_elsewhere_are_refused(tmp_path: Path, member: Member | tarfile.TarInfo) -> None:
    shard = write_tar(tmp_path / "w.tar", [*TWO, member])
    message = refused(shard)
    assert message.startswith(f"{shard} holds '{member.name if isinstance(member, tarfile.TarInfo) else member[0]}', ")
    assert sorted(os.listdir(tmp_path)) == ["w.tar"]


@pytest.mark.parametrize(
    ("mode", "command"), [("w:gz", "gunzip"), ("w:bz2", "bunzip2"), ("w:xz", "unxz")], ids=["gz", "bz2", "xz"]
)
def test_compressed_tars_are_refused(tmp_path: Path, mode: str, command: str) -> None:
    with tarfile.open(tmp_path / "w.tar", mode) as tar:
        tar.addfile(tarfile.TarInfo("a/1.jpg"))
    assert f"unpack it with {command}" in refused(str(tmp_path / "w.tar"))


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    """In data, in a header and between members; the last member's end without the end mark too."""
    whole = tar_bytes([("a/1.jpg", b"x" * 700), ("b/1.jpg", b"y" * 700)])
    shard = tmp_path / "w.tar"
    for length in (0, 100, 512, 900, 1536, 1536 + 100, 1536 + 512, 1536 + 1300, 2 * 1536, 2 * 1536 + 100):
        shard.write_bytes(whole[:length])
        message = refused(str(shard))
        assert message.startswith(f"{shard} is damaged, cut off or no tar file"), length


def test_damage_in_the_middle_is_noticed(tmp_path: Path) -> None:
    whole = bytearray(tar_bytes([("a/1.jpg", b"x"), ("b/1.jpg", b"y"), ("c/1.jpg", b"z")]))
    whole[1024 + 20] ^= 255
    (tmp_path / "w.tar").write_bytes(whole)
    assert "no end mark after byte 1024" in refused(str(tmp_path / "w.tar"))
    (tmp_path / "w.tar").write_bytes(b"no tar at all " * 100)
    assert "no tar file" in refused(str(tmp_path / "w.tar"))


def test_joined_tars_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w.tar").write_bytes(tar_bytes(TWO) * 2)
    assert "goes on after its end mark" in refused(str(tmp_path / "w.tar"))


def test_random_damage_never_ends_in_another_error(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    whole = tar_bytes([("a/" + "n" * 200 + ".jpg", b"x" * 600), ("b/1.jpg", b"y")], tarfile.PAX_FORMAT)
    shard = tmp_path / "w.tar"
    for _ in range(300):
        damaged = bytearray(whole)
        for place in random.integers(0, 4096, 3):
            damaged[place] = random.integers(0, 256)
        shard.write_bytes(damaged)
        try:
            train, _ = open_shards(str(shard), str(shard))
        except FolderError:
            continue
        assert all(len(train.read(i)) == train.sizes[i] for i in range(len(train)))

"""Tar files -> images, labels and bytes."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from shard_cases import TWO, content, refused, special, write_tar

from data.shards import open_shards


def test_members_in_class_folders(tmp_path: Path) -> None:
    first = write_tar(tmp_path / "t-0.tar", [("b/2.jpg", b"b2"), ("./a/1.PNG", b"a1"), ("b/sub/0.jpg", b"deep")])
    second = write_tar(tmp_path / "t-1.tar", [("a/0.webp", b"a0"), ("b/3.jpeg", b"")])
    val = write_tar(tmp_path / "v.tar", [("b/1.jpg", b"v")])
    train, held_out = open_shards(str(tmp_path / "t-{0..1}.tar"), val)
    assert content(train) == [
        ("a", "a/0.webp", b"a0"),
        ("a", "a/1.PNG", b"a1"),
        ("b", "b/2.jpg", b"b2"),
        ("b", "b/3.jpeg", b""),
        ("b", "b/sub/0.jpg", b"deep"),
    ]
    assert (train.name(0), train.name(2)) == (f"{second}!a/0.webp", f"{first}!b/2.jpg")
    assert (train.labels.dtype, train.labels.tolist()) == (np.int32, [0, 0, 1, 1, 1])
    assert (train.offsets.dtype, train.sizes.dtype) == (np.int64, np.int64)
    assert (held_out.classes, held_out.labels.tolist()) == (("a", "b"), [1])
    assert train.describe() == f"5 images, 2 classes in 2 tar files from {first} on"


def test_keys_with_the_class_as_a_number(tmp_path: Path) -> None:
    """Ordered as numbers: 10 comes after 9."""
    members = [
        (f"k/{n:02d}.{kind}", text) for n in range(11) for kind, text in (("jpg", b"%d" % n), ("cls", b"%d\n" % n))
    ]
    shard = write_tar(tmp_path / "w.tar", members)
    train, val = open_shards(shard, shard)
    assert train.classes == val.classes == tuple(map(str, range(11)))
    assert [train.read(i) for i in range(11)] == [b"%d" % n for n in range(11)]


def test_keys_with_the_class_as_a_name(tmp_path: Path) -> None:
    members = [
        ("2.cls", b"cat"),
        ("2.jpg", b"2"),
        ("1.png", b"1"),
        ("1.cls", "\ufeffété\n".encode()),
        ("1.json", b"{}"),
    ]
    shard = write_tar(tmp_path / "w.tar", members)
    train, _ = open_shards(shard, shard)
    assert content(train) == [("cat", "2.jpg", b"2"), ("été", "1.png", b"1")]
    assert train.ignored == {".json": 1}


def test_further_images_of_a_key_are_left_out(tmp_path: Path) -> None:
    members = [("1.jpg", b"1"), ("1.mask.png", b"m"), ("1.cls", b"0"), ("2.cls", b"1")]
    shard = write_tar(tmp_path / "w.tar", members)
    train, _ = open_shards(shard, shard)
    assert len(train) == 1
    assert (
        train.describe()
        == f"1 images, 1 classes in {shard} (left out: 1 .cls without an image, 1 further images of a key)"
    )


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar program")
def test_tars_of_the_tar_program(tmp_path: Path) -> None:
    (tmp_path / "set/a").mkdir(parents=True)
    (tmp_path / "set/a/1.jpg").write_bytes(b"a1")
    for name, flags in (("plain", ["."]), ("posix", ["--format=posix", "a"]), ("blocks", ["-b", "512", "a"])):
        subprocess.run(["tar", "-C", tmp_path / "set", "-cf", tmp_path / f"{name}.tar", *flags], check=True, timeout=60)
        train, _ = open_shards(*[str(tmp_path / f"{name}.tar")] * 2)
        assert content(train) == [("a", "a/1.jpg", b"a1")]
    with open(tmp_path / "set/a/2.jpg", "wb") as file:
        file.truncate(1 << 24)
    subprocess.run(["tar", "-C", tmp_path / "set", "--sparse", "-cf", tmp_path / "s.tar", "a"], check=True, timeout=60)
    if (tmp_path / "s.tar").stat().st_size < 1 << 24:  # else the file system keeps no holes
        assert "holds 'a/2.jpg', a sparse file" in refused(str(tmp_path / "s.tar"))


def test_a_directory_named_as_an_image_is_none(tmp_path: Path) -> None:
    members = [special("a", tarfile.DIRTYPE), special("a/x.jpg", tarfile.DIRTYPE), ("a/x.jpg/1.jpg", b"in"), *TWO]
    train, _ = open_shards(*[write_tar(tmp_path / "w.tar", members)] * 2)
    assert [name for _, name, _ in content(train)] == ["a/1.jpg", "a/x.jpg/1.jpg", "b/1.jpg"]
    assert not train.ignored


def test_hidden_and_foreign_members_are_counted(tmp_path: Path) -> None:
    more = [
        ("a/.x.jpg", b""),
        ("a/._1.jpg", b""),
        ("__MACOSX/a/1.jpg", b""),
        (".git/1.jpg", b""),
        ("a/t.txt", b""),
        ("a/y", b""),
        ("z.jpg", b""),
    ]
    train, _ = open_shards(*[write_tar(tmp_path / "w.tar", [*TWO, *more])] * 2)
    assert train.ignored == {"hidden": 4, ".txt": 1, "no suffix": 1, "outside class folders": 1}
    assert len(train) == 2


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_every_form_of_tar(tmp_path: Path, form: int) -> None:
    long = "n" * 90 if form == tarfile.USTAR_FORMAT else "n" * 400
    odd = "\udcff" if form != tarfile.USTAR_FORMAT else "é"
    members = [(f"a/{long}.jpg", b"long"), (f"b/{odd}.jpg", b"odd"), ("b/z.jpg", b"z")]
    train, _ = open_shards(*[write_tar(tmp_path / "w.tar", members, form)] * 2)
    assert sorted(content(train)) == sorted((name[0], name, data) for name, data in members)


def test_val_follows_the_classes_of_train(tmp_path: Path) -> None:
    train = write_tar(tmp_path / "t.tar", [("a/1.jpg", b""), ("b/1.jpg", b""), ("c/1.jpg", b"")])
    val = write_tar(tmp_path / "v.tar", [("c/1.jpg", b"")])
    assert open_shards(train, val)[1].labels.tolist() == [2]
    wrong = write_tar(tmp_path / "v2.tar", [("a/1.jpg", b""), ("d/1.jpg", b"")])
    assert refused(train, wrong) == f"{wrong} has class 'd', which the training shards have not: rename or remove it"


def test_the_same_member_in_two_shards_is_two_samples(tmp_path: Path) -> None:
    paths = [write_tar(tmp_path / f"{n}.tar", [("a/1.jpg", b"%d" % n)]) for n in range(2)]
    train, _ = open_shards(str(tmp_path / "*.tar"), paths[0])
    assert [(train.name(i), train.read(i)) for i in range(2)] == [
        (f"{paths[0]}!a/1.jpg", b"0"),
        (f"{paths[1]}!a/1.jpg", b"1"),
    ]

"""Tar files -> images, labels and bytes; what is said about tar files that cannot be trained on."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import cache_files, shard_files, shards
from data.folder import FolderError
from data.shards import ShardIndex, open_shards

Member = tuple[str, bytes]
TWO: list[Member] = [("a/1.jpg", b"a1"), ("b/1.jpg", b"b1")]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder of the test's own; tar files of a test are always newer than two seconds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(cache_files, "UNSETTLED_NS", -(10**12))


def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards whose headers are read from here on."""
    seen: list[str] = []
    real = shards.read_table
    monkeypatch.setattr(shards, "read_table", lambda file, url, size: seen.append(url) or real(file, url, size))
    return seen


def tar_bytes(members: Sequence[Member | tarfile.TarInfo], form: int = tarfile.GNU_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return file.getvalue()


def write_tar(path: Path, members: Sequence[Member | tarfile.TarInfo], form: int = tarfile.GNU_FORMAT) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members, form))
    return str(path)


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def content(index: ShardIndex) -> list[tuple[str, str, bytes]]:
    """Class, member and bytes of every sample, in order."""
    rows = range(len(index))
    return [(index.classes[index.labels[i]], index.name(i).split("!")[1], index.read(i)) for i in rows]


def refused(train: str, val: str | None = None) -> str:
    with pytest.raises(FolderError) as caught:
        open_shards(train, val if val is not None else train)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("s-{000..002}.tar", ["s-000.tar", "s-001.tar", "s-002.tar"]),
        ("s-00{2..1}.tar", ["s-002.tar", "s-001.tar"]),
        ("s-{000,002}.tar", ["s-000.tar", "s-002.tar"]),
        ("{s,u}-00{0..1}.tar", ["s-000.tar", "s-001.tar", "u-000.tar", "u-001.tar"]),
        ("s-*.tar", ["s-000.tar", "s-001.tar", "s-002.tar"]),
        ("?-001.tar", ["s-001.tar", "u-001.tar"]),
        ("[u]-*.tar", ["u-000.tar", "u-001.tar"]),
        ("s-{000,000}.tar", ["s-000.tar"]),
        ("n-{8..10}.tar", ["n-8.tar", "n-9.tar", "n-10.tar"]),
        ("{odd}.tar", ["{odd}.tar"]),
        ("{1,2}.tar", ["{1,2}.tar"]),
    ],
)
@pytest.mark.parametrize("prefix", ["", "file://"])
def test_patterns(tmp_path: Path, pattern: str, found: list[str], prefix: str) -> None:
    names = "s-000 s-001 s-002 u-000 u-001 n-8 n-9 n-10 {odd} {1,2}".split()
    for name in names:
        (tmp_path / f"{name}.tar").touch()
    assert shard_files.expand_pattern(f"{prefix}{tmp_path}/{pattern}") == [f"{tmp_path}/{name}" for name in found]


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("none-*.tar", "no tar file matches"),
        ("none.tar", "no tar file matches"),
        ("{0..3}.tar", "2 of the 4 shards of"),
        ("{0..99999999}.tar", "more than 100000 files"),
        ("{0..9999}{0..9999}.tar", "more than 100000 files"),
        ("", "is a folder: name its tar files"),
        ("zzz://b/x.tar", "cannot open zzz://b/x.tar"),
        ("memory://nowhere/*.tar", "no tar file matches memory://"),
    ],
)
def test_patterns_that_match_too_little_or_too_much(tmp_path: Path, pattern: str, part: str) -> None:
    for name in "12":
        write_tar(tmp_path / f"{name}.tar", TWO)
    assert part in refused(pattern if "://" in pattern else str(tmp_path / pattern))


def test_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = pytest.importorskip("fsspec").filesystem("memory")
    fs.pipe("/bucket/t-0.tar", tar_bytes(TWO))
    fs.pipe("/bucket/t-1.tar", tar_bytes([("a/2.jpg", b"a2")]))
    fs.pipe("/bucket/bad.tar", tar_bytes(TWO)[:600])
    for pattern in ("memory://bucket/t-{0..1}.tar", "memory://bucket/t-*.tar"):
        train, _ = open_shards(pattern, pattern)
        assert [train.read(i) for i in range(3)] == [b"a1", b"a2", b"b1"]
        assert train.name(1).startswith("memory://")
        assert train.name(1).endswith("bucket/t-1.tar!a/2.jpg")
    assert in_children(train, [[2, 1, 0]]) == [[b"b1", b"a2", b"a1"]]
    assert "bad.tar is damaged" in refused("memory://bucket/bad.tar")
    monkeypatch.setattr(shards, "open_shard", None)  # the second start lists nothing
    assert len(open_shards(pattern, pattern)[0]) == 3


def test_a_remote_place_with_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As s3 and https have: its connections do not outlive a fork, and its errors need be no OSError."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.asyn import AsyncFileSystem

    files = {"bucket/t-0.tar": tar_bytes(TWO), "bucket/t-1.tar": tar_bytes([("a/2.jpg", b"a2")])}

    class Remote(AsyncFileSystem):  # type: ignore[misc]
        protocol = "toy"

        async def _info(self, path: str, **_: Any) -> dict[str, Any]:
            if path not in files:
                raise FileNotFoundError(path)
            return {"name": path, "size": len(files[path]), "type": "file", "ETag": str(hash(files[path]))}

        async def _cat_file(self, path: str, start: int = 0, end: int | None = None, **_: Any) -> bytes:
            if path not in files:
                raise LookupError("no such key")
            return files[path][start:end]

        def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
            return io.BytesIO(files[path])

    fsspec.register_implementation("toy", Remote, clobber=True)
    pattern = "toy://bucket/t-{0..1}.tar"
    train, _ = open_shards(pattern, pattern)
    assert train.read(0) == b"a1"
    assert in_children(train, [[1, 2], [2, 0]]) == [[b"a2", b"b1"], [b"b1", b"a1"]]
    seen = listings(monkeypatch)
    open_shards(pattern, pattern)
    assert seen == []
    files["bucket/t-1.tar"] = tar_bytes([("a/3.jpg", b"a3")])
    assert open_shards(pattern, pattern)[0].read(1) == b"a3"
    assert seen == ["toy://bucket/t-1.tar"]
    del files["bucket/t-1.tar"]
    with pytest.raises(OSError, match="cannot read toy://bucket/t-1.tar .LookupError: no such key"):
        train.read(1)
    assert "1 of the 2 shards" in refused(pattern)


def in_children(index: ShardIndex, orders: list[list[int]]) -> list[list[bytes]]:
    """What forked processes read, each in an order of its own, all at once."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(len(orders))

    def child(order: list[int], pipe: Any) -> None:
        start.wait(30)
        pipe.send([index.read(i) for i in order])

    pipes = [context.Pipe(duplex=False) for _ in orders]
    children = [context.Process(target=child, args=(order, pipe[1])) for order, pipe in zip(orders, pipes, strict=True)]
    for process in children:
        process.start()
    for _, sender in pipes:
        sender.close()
    found = [receiver.recv() for receiver, _ in pipes]
    for process in children:
        process.join(30)
    return found


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

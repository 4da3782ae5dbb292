"""scripts/make_shards.py: tar files that train as their folder does, and what happens to a folder that holds some."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from helpers import make_folder, write_image

from data.folder import FolderIndex, scan_data_dir
from data.sampler import StepSampler
from data.shards import ShardIndex, open_shards

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import make_shards  # noqa: E402

Shown = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two splits with everything that could change an order: deeper folders, dots, case, digits, odd suffixes."""
    root = make_folder(tmp_path / "set", classes=("10", "9", "B", "a"), train=3, val=2, size=8)
    for name in (
        "10/sub/0.jpg",
        "10/sub.jpg",
        "9/x.y.PNG",
        "9/x-y.jpg",
        "B/x/y/0.JPEG",
        "B/x.jpg",
        "a/z.webp",
        "a/.h.jpg",
    ):
        write_image(root / "train" / name, size=8, seed=len(name))
    return root


def shards_of(source: Path, out: Path, capsys: Shown, *flags: str) -> tuple[ShardIndex, ShardIndex]:
    """Write shards and open them by the flags the script prints."""
    assert make_shards.main([str(source), str(out), *flags]) == 0
    words = capsys.readouterr().out.splitlines()[-1].replace("'", "").split()
    assert words[:5] == ["Next:", "python", "train.py", "--train-shards", words[4]]
    assert words[5] == "--val-shards"
    return open_shards(words[4], words[6])


@pytest.mark.parametrize("style", ["folder", "webdataset"])
def test_the_same_order_labels_and_bytes_as_the_folder(
    folder: Path, tmp_path: Path, capsys: Shown, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a seed gives the same batches: the sampler knows nothing but the number of images."""
    monkeypatch.setattr(make_shards, "_whole", lambda size: size << 9)  # several small shards
    old = scan_data_dir(str(folder))
    new = shards_of(folder, tmp_path / "new" / "dst", capsys, "--style", style, "--shard-size-mb", "2")
    assert len(new[0].reader.urls) > 2
    for files, members in zip(old, new, strict=True):
        assert members.labels.tolist() == files.labels.tolist()
        assert [members.read(i) for i in range(len(members))] == [files.read(i) for i in range(len(files))]
        for batch in StepSampler(len(members), 4, 0, 1, 1, 7, None):
            assert [members.read(i) for _, i in batch] == [files.read(i) for _, i in batch]
    if style == "folder":
        assert old[0].classes == new[0].classes
        assert [new[0].name(i).split("!")[1] for i in range(len(new[0]))] == [
            os.path.relpath(old[0].name(i), folder / "train") for i in range(len(old[0]))
        ]
    else:
        assert new[0].classes == ("0", "1", "2", "3")
        assert json.loads((tmp_path / "new/dst/classes.json").read_text()) == list(old[0].classes)


def test_the_same_folder_gives_the_same_bytes(folder: Path, tmp_path: Path, capsys: Shown) -> None:
    shards_of(folder, tmp_path / "1", capsys)
    for path in folder.rglob("*.jpg"):
        os.utime(path, (1, 1))
    shards_of(folder, tmp_path / "2", capsys)
    for name in ("train-00000.tar", "val-00000.tar"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    assert sorted(os.listdir(tmp_path / "1")) == ["train-00000.tar", "val-00000.tar"]


def test_other_programs_can_read_them(tmp_path: Path, capsys: Shown) -> None:
    source = make_folder(tmp_path / "set", train=1, val=1, size=8)
    long = source / "train/a" / ("n" * 150 + ".jpg")
    write_image(long, size=8)
    shards_of(source, tmp_path / "dst", capsys)
    with tarfile.open(tmp_path / "dst/train-00000.tar") as tar:
        assert tar.getnames() == ["a/000.jpg", f"a/{long.name}", "b/000.jpg"]
        member = tar.getmembers()[1]
        assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (0, 0, 0, "", "")
        file = tar.extractfile(member)
        assert file is not None
        assert file.read() == long.read_bytes()
    assert (tmp_path / "dst/train-00000.tar").stat().st_size % tarfile.RECORDSIZE == 0


def test_shards_stay_below_the_size(tmp_path: Path, capsys: Shown) -> None:
    source = make_folder(tmp_path / "set", train=1, val=1, size=8)
    noise = np.random.default_rng(0).bytes(300_000)
    for number in range(8):
        (source / "train/a" / f"x{number}.jpg").write_bytes(noise)
    train, _ = shards_of(source, tmp_path / "dst", capsys, "--shard-size-mb", "1")
    sizes = [os.path.getsize(path) for path in train.reader.urls]
    assert len(sizes) == 3
    assert max(sizes) <= 1 << 20
    assert train.read(3) == noise


def refused(capsys: Shown, *arguments: object) -> str:
    assert make_shards.main([str(argument) for argument in arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    return shown.err


def test_shards_that_are_there_are_never_touched(folder: Path, tmp_path: Path, capsys: Shown) -> None:
    (tmp_path / "dst").mkdir()
    (tmp_path / "dst/mine.tar").write_text("mine")
    assert "already holds tar files" in refused(capsys, folder, tmp_path / "dst")
    assert os.listdir(tmp_path / "dst") == ["mine.tar"]
    assert "is a file" in refused(capsys, folder, tmp_path / "dst/mine.tar")
    assert "cannot write" in refused(capsys, folder, tmp_path / "dst/mine.tar/below")


def test_mistakes_are_one_line(folder: Path, tmp_path: Path, capsys: Shown) -> None:
    assert "no folder" in refused(capsys, tmp_path / "none", tmp_path / "dst")
    assert "--shard-size-mb" in refused(capsys, folder, tmp_path / "dst", "--shard-size-mb", "0")
    assert "--style" in refused(capsys, folder, tmp_path / "dst", "--style", "zip")


@pytest.mark.parametrize("name", ["", "shards", "train", "train/new", "val/a", "../link/train/new"])
def test_nothing_is_written_into_dir(folder: Path, tmp_path: Path, capsys: Shown, name: str) -> None:
    """An empty folder in train/ would stop the next training."""
    (tmp_path / "link").symlink_to(folder)
    before = sorted(folder.rglob("*"))
    assert "lies in" in refused(capsys, folder, folder / name)
    assert sorted(folder.rglob("*")) == before
    (folder / "train").rename(tmp_path / "elsewhere")
    (folder / "train").symlink_to(tmp_path / "elsewhere")
    assert "lies in" in refused(capsys, folder, tmp_path / "elsewhere/new")


@pytest.mark.parametrize("name", ["sh::x", "s3://bucket/x", "{a,b}", "[old]", "x*"])
def test_a_name_that_train_would_not_take_for_a_folder_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown, name: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "would be read as an address or a pattern" in refused(capsys, folder, name)
    assert os.listdir() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("disk full")])
def test_an_interruption_leaves_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Shown, error: BaseException
) -> None:
    real, calls = make_shards.pack_member, []

    def interrupt(name: str, content: bytes) -> bytes:
        calls.append(name)
        if len(calls) > 3:
            raise error
        return bytes(real(name, content))

    monkeypatch.setattr(make_shards, "pack_member", interrupt)
    code = make_shards.main([str(folder), str(tmp_path / "dst")])
    assert code == (130 if isinstance(error, KeyboardInterrupt) else 2)
    assert os.listdir(tmp_path / "dst") == []
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("style", ["folder", "webdataset"])
def test_a_flat_val_folder_with_its_list(folder: Path, tmp_path: Path, capsys: Shown, style: str) -> None:
    """As ILSVRC ships it."""
    wanted = {}
    for number, path in enumerate(sorted((folder / "val").glob("*/*.jpg"), key=lambda path: path.name)):
        path.rename(flat := folder / "val" / f"ILSVRC2012_val_{number:08d}.JPEG")
        wanted[flat.read_bytes()] = path.parent.name
    for name in ("10", "9", "B", "a"):
        (folder / "val" / name).rmdir()
    assert make_shards.main([str(folder), str(tmp_path / "none")]) == 2
    assert "--val-labels FILE" in capsys.readouterr().err
    assert not list((tmp_path / "none").iterdir())
    names = {path.read_bytes(): path.name for path in (folder / "val").iterdir()}
    file = tmp_path / "val.csv"
    file.write_text("".join(f"{names[data]},{name}\n" for data, name in wanted.items()))
    _, val = shards_of(folder, tmp_path / "tars", capsys, "--style", style, "--val-labels", str(file))
    classes = json.loads((tmp_path / "tars/classes.json").read_text()) if style == "webdataset" else val.classes
    found = {val.read(index): classes[val.labels[index]] for index in range(len(val))}
    assert found == wanted
    assert len(found) == 8


def test_a_file_that_cannot_be_read_is_named(folder: Path, tmp_path: Path, capsys: Shown, monkeypatch) -> None:
    victim = scan_data_dir(folder)[0].name(3)
    read = FolderIndex.read

    def failing(self: FolderIndex, number: int) -> bytes:
        if self.name(number) == victim:
            raise OSError(5, "Input/output error")
        return read(self, number)

    monkeypatch.setattr(FolderIndex, "read", failing)
    assert make_shards.main([str(folder), str(tmp_path / "out")]) == 5
    assert f"cannot read {victim} (Input/output error): mend or remove it" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.tar"))

"""Which index a class of tar files has: numbers stay as they are given, and --class-map pins names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import make_folder

from data.folder import FolderError, scan_data_dir
from data.shards import ShardIndex, open_shards
from scripts import make_shards

TINY = "-a toy_models:tiny -b 2 --image-size 8 --epochs 1 -j 0 --tensorboard false"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def tar(path: Path, *classes: str) -> str:
    """One image for each ``.cls`` content."""
    members = [
        pair for key, text in enumerate(classes) for pair in ((f"{key}.jpg", b"x"), (f"{key}.cls", text.encode()))
    ]
    path.write_bytes(b"".join(make_shards.pack_member(*member) for member in members) + bytes(10240))
    return str(path)


def folders(path: Path, *classes: str) -> str:
    """One image in each class folder."""
    path.write_bytes(b"".join(make_shards.pack_member(f"{name}/1.jpg", b"x") for name in classes) + bytes(10240))
    return str(path)


def refused(*arguments: object, **options: object) -> str:
    with pytest.raises(FolderError) as caught:
        open_shards(*arguments, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def classes_of(index: ShardIndex) -> list[str]:
    return [index.classes[label] for label in index.labels]


def test_indices_with_gaps_stay_as_they_are(tmp_path: Path):
    train, val = open_shards(tar(tmp_path / "t.tar", "5", "0", "2", "02"), tar(tmp_path / "v.tar", "2", "5"))
    assert train.labels.tolist() == [0, 2, 2, 5]
    assert val.labels.tolist() == [2, 5]
    assert train.classes == val.classes == ("0", "1", "2", "3", "4", "5")
    assert train.describe() == f"4 images, 6 classes, 3 of them without an image, in {tmp_path / 't.tar'}"


def test_the_head_has_an_output_for_each_index(run, tmp_path: Path):
    made = make_folder(tmp_path / "set", ("a", "b"), train=4, val=2)
    assert make_shards.main([str(made), str(tmp_path / "one"), "--style", "webdataset"]) == 0
    for split in ("train", "val"):  # 1 becomes 3; the name of a class has no checksum
        path = tmp_path / f"one/{split}-00000.tar"
        path.write_bytes(path.read_bytes().replace(b"1" + bytes(511), b"3" + bytes(511)))
    data = ["--train-shards", f"{tmp_path}/one/train-*.tar", "--val-shards", f"{tmp_path}/one/val-*.tar"]
    assert run(*data, "--output-dir", "run", base=TINY) == 0
    assert "num_classes: 4\n" in Path("run/resolved.yaml").read_text()


def test_an_index_that_only_val_has_is_refused(tmp_path: Path):
    """Also one in a gap of train's: no image has taught it."""
    train = tar(tmp_path / "t.tar", "0", "2")
    for index in ("1", "3"):
        val = tar(tmp_path / "v.tar", "0", index)
        assert refused(train, val) == (
            f"{val} has class '{index}', which the training shards have not: rename or remove it"
        )


@pytest.mark.parametrize("index", ["-1", "100000", "999999999999"])
def test_an_index_that_cannot_be_one_is_refused(tmp_path: Path, index: str):
    shard = tar(tmp_path / "t.tar", "0", index)
    assert refused(shard, shard).startswith(f"{shard} has class index {index}, and indices go from 0 to 99999 at the")


def test_a_class_map_names_indices(tmp_path: Path):
    """Which may then have gaps, also at the end, and lie in val alone."""
    file = tmp_path / "map.json"
    file.write_text('["cat", "dog", "eel", "fox"]')
    train, val = open_shards(tar(tmp_path / "t.tar", "2", "0"), tar(tmp_path / "v.tar", "1"), class_map=str(file))
    assert train.classes == val.classes == ("cat", "dog", "eel", "fox")
    assert (classes_of(train), classes_of(val)) == (["cat", "eel"], ["dog"])
    shard = tar(tmp_path / "w.tar", "4")
    assert refused(shard, shard, class_map=str(file)) == (
        f"{shard} has class '4', which --class-map {file} has not: rename or remove it"
    )


def test_a_class_map_pins_names(tmp_path: Path):
    file = tmp_path / "map.json"
    file.write_text('["fox", "cat"]')
    for write in (tar, folders):
        shard = write(tmp_path / f"{write.__name__}.tar", "cat", "fox")
        train, _ = open_shards(shard, shard, class_map=str(file))
        assert train.classes == ("fox", "cat")
        assert classes_of(train) == ["fox", "cat"]
    shard = folders(tmp_path / "0.tar", "0")
    assert "has class '0', which --class-map" in refused(shard, shard, class_map=str(file)), (
        "a folder's name is no index"
    )


def test_a_class_map_of_numbers_is_one_of_names(tmp_path: Path):
    file = tmp_path / "map.json"
    file.write_text('["7", "2"]')
    train, _ = open_shards(*[tar(tmp_path / "t.tar", "2", "07")] * 2, class_map=str(file))
    assert train.labels.tolist() == [0, 1]
    assert classes_of(train) == ["7", "2"]
    shard = tar(tmp_path / "u.tar", "2", "1")
    assert "has class '1'" in refused(shard, shard, class_map=str(file))


def test_a_class_map_is_written_where_there_is_none(tmp_path: Path):
    file = tmp_path / "map.json"
    shard = tar(tmp_path / "t.tar", "dog", "cat")
    open_shards(shard, shard, class_map=str(file))
    assert json.loads(file.read_text()) == ["cat", "dog"]


def test_names_in_val_are_no_indices_of_names_in_train(tmp_path: Path):
    train, val = folders(tmp_path / "t.tar", "cat", "dog"), tar(tmp_path / "v.tar", "0")
    assert "has class '0', which the training shards have not" in refused(train, val)


def test_shards_by_index_are_the_folder_again_with_their_class_map(run, tmp_path: Path, capsys):
    """A checkpoint of the folder goes on with them."""
    made = make_folder(tmp_path / "set", ("b c", "a"), train=3, val=2)
    assert make_shards.main([str(made), str(tmp_path / "one"), "--style", "webdataset"]) == 0
    data = ["--train-shards", f"{tmp_path}/one/train-*.tar", "--val-shards", f"{tmp_path}/one/val-*.tar"]
    data += ["--class-map", f"{tmp_path}/one/classes.json"]
    train, _ = open_shards(data[1], data[3], class_map=data[5])
    folder, _ = scan_data_dir(str(made))
    assert (train.classes, train.labels.tolist()) == (folder.classes, folder.labels.tolist())
    assert run(made, "--output-dir", "run", base=TINY) == 0
    assert run("-e", "--resume", "run", *data, base="-j 0") == 0
    assert run(*data, "--output-dir", "other", base=TINY) == 0
    assert run("--resume", "other", "--epochs", 2, base=None) == 0, "the map's path is in the checkpoint"
    capsys.readouterr()
    assert run(*data, "--check-data", "-j", 0, base=None) == 0
    assert "b c" in capsys.readouterr().out

"""Class folders -> files and labels, and what is left out."""

from __future__ import annotations

import dataclasses
import os
import pickle
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers import folder_refused, make_folder, write_image

from data.folder import scan_data_dir
from data.index import Names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "set", train=3, val=2, size=8)


def test_files_and_labels_in_order(folder: Path):
    train, val = scan_data_dir(str(folder))
    assert train.classes == val.classes == ("a", "b")
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [Path(val.name(i)).relative_to(folder).as_posix() for i in range(len(val))] == [
        "val/a/000.jpg", "val/a/001.jpg", "val/b/000.jpg", "val/b/001.jpg",
    ]  # fmt: skip
    assert (len(train), len(val)) == (6, 4)
    assert train.describe() == "6 images, 2 classes"


def test_hidden_names_are_no_class_and_no_image(folder: Path):
    """R12: `.ipynb_checkpoints` neither becomes class 0 nor hides among a class's images."""
    write_image(folder / "train/.ipynb_checkpoints/x.jpg", size=8)
    write_image(folder / "train/b/.ipynb_checkpoints/x.jpg", size=8)
    write_image(folder / "train/b/.x.jpg", size=8)
    train, _ = scan_data_dir(str(folder))
    assert train.classes == ("a", "b")
    assert len(train) == 6
    assert train.describe() == "6 images, 2 classes (left out: 3 hidden)"


def test_an_empty_class_of_train_is_refused(folder: Path):
    """R14: its index would shift or stay untrained."""
    (folder / "train/c").mkdir()
    assert folder_refused(folder) == f"no image in {folder}/train for class c: fill or remove the folder"


@pytest.mark.parametrize("in_train", [True, False])
def test_an_empty_class_of_val_is_fine(folder: Path, in_train: bool):
    """R14: whether train has the class or not."""
    if in_train:
        write_image(folder / "train/c/x.jpg", size=8)
    (folder / "val/c").mkdir()
    train, val = scan_data_dir(str(folder))
    assert train.classes == val.classes
    assert len(val) == 4
    assert ("empty folders" in val.describe()) is not in_train
    assert ("3 classes, 1 of them without an image" in val.describe()) is in_train


def test_val_labels_follow_trains_class_names(folder: Path):
    """R16: a class that val lacks does not move the labels of the others."""
    shutil.rmtree(folder / "val/a")
    _, val = scan_data_dir(str(folder))
    assert val.labels.tolist() == [1, 1]
    assert val.describe() == "2 images, 2 classes, 1 of them without an image"
    assert val.classes == ("a", "b")


def test_suffixes_of_any_case_and_what_is_ignored(folder: Path):
    """R18."""
    shutil.rmtree(folder / "train/a")
    for name in ("x.JPEG", "x.Jpg", "x.webp", "x.gif", "y.GIF", "README", ".hidden"):
        path = folder / "train/a" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (folder / "train/notes.txt").touch()
    train, _ = scan_data_dir(str(folder))
    assert [path for path in train.paths if path.startswith("a/")] == ["a/x.JPEG", "a/x.Jpg", "a/x.webp"]
    assert train.ignored == {".gif": 2, "no suffix": 1, "hidden": 1, "outside class folders": 1}
    assert "left out: 2 .gif, 1 hidden, 1 no suffix, 1 outside class folders" in train.describe()


def test_many_kinds_of_other_files_stay_one_short_line(folder: Path):
    for number in range(9):
        for copy in range(number + 1):
            (folder / f"train/a/{copy}.k{number}").touch()
    train, _ = scan_data_dir(str(folder))
    left_out = "9 .k8, 8 .k7, 7 .k6, 6 .k5, 5 .k4, 4 .k3, 6 of 3 other kinds"
    assert train.describe() == f"6 images, 2 classes (left out: {left_out})"


def test_what_other_systems_leave_behind_is_no_class_and_no_image(folder: Path):
    write_image(folder / "train/__MACOSX/a/x.jpg", size=8)
    write_image(folder / "train/b/__MACOSX/x.jpg", size=8)
    for name in ("train/._a", "train/b/._000.jpg", "val/.DS_Store", "val/a/Thumbs.db"):
        (folder / name).touch()
    train, val = scan_data_dir(str(folder))
    assert train.classes == ("a", "b")
    assert train.describe() == "6 images, 2 classes (left out: 4 AppleDouble)"
    assert val.describe() == "4 images, 2 classes (left out: 1 .db, 1 hidden)"


@pytest.mark.skipif(sys.platform == "darwin", reason="takes only names that are UTF-8")
def test_an_index_names_and_reads_its_files_and_travels_small(folder: Path):
    (folder / os.fsdecode(b"val/b/caf\xe9.jpg")).write_bytes(b"picture")
    train, val = scan_data_dir(str(folder))
    val = pickle.loads(pickle.dumps(val))
    assert [Path(val.name(index)).read_bytes() for index in range(5)] == [val.read(index) for index in range(5)]
    assert val.read(4) == b"picture"
    assert val.labels.dtype == train.labels.dtype == np.int32
    assert str(folder) not in "".join(val.paths)
    many = dataclasses.replace(val, paths=Names(["b/000.jpg"] * 10_000), labels=np.zeros(10_000, np.int32))
    assert len(pickle.dumps(many)) < 10_000 * (len("b/000.jpg") + 8 + 4) + 5_000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no named pipes")
def test_a_pipe_in_place_of_a_scanned_file_holds_up_nobody(folder: Path):
    train, _ = scan_data_dir(str(folder))
    os.unlink(train.name(0))
    os.mkfifo(train.name(0))
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(train.read(0)), daemon=True)
    reader.start()
    reader.join(20)
    assert read == [b""]


def test_broken_links_and_loops_are_left_out(folder: Path):
    os.symlink(folder / "none.jpg", folder / "train/a/broken.jpg")
    os.symlink("self.jpg", folder / "train/a/self.jpg")
    os.symlink("..", folder / "train/a/up")
    os.symlink(folder, folder / "train/a/top")
    os.symlink("/", folder / "train/a/root")
    os.symlink("../b", folder / "train/a/other")
    os.symlink("../a", folder / "train/b/other")
    train, _ = scan_data_dir(str(folder))
    assert train.labels.tolist() == [0] * 6 + [1] * 6  # each holds the other's too, once
    assert train.ignored == {"broken links": 4}


def test_an_image_beside_the_class_folders_moves_no_label(folder: Path):
    for name in ("train/0.jpg", "train/z.jpg", "val/0.jpg"):
        write_image(folder / name, size=8)
    train, val = scan_data_dir(str(folder))
    assert [(train.paths[i], int(train.labels[i])) for i in (0, 3)] == [("a/000.jpg", 0), ("b/000.jpg", 1)]
    assert (len(train), len(val)) == (6, 4)
    assert train.ignored == {"outside class folders": 2}


def test_images_in_folders_below_a_class_count_and_links_are_followed(folder: Path):
    write_image(folder / "train/a/more/deep/z.jpg", size=8)
    os.symlink(folder / "train/b", folder / "train/c")
    os.symlink(folder / "train/b/000.jpg", folder / "train/a/link.jpg")
    train, _ = scan_data_dir(str(folder))
    assert train.classes == ("a", "b", "c")
    assert [train.labels.tolist().count(label) for label in range(3)] == [5, 3, 3]


def test_the_start_says_what_is_used_and_what_is_left_out(folder: Path, run, capsys):
    """R18."""
    (folder / "train/a/x.gif").touch()
    flags = "-a toy_models:tiny -b 2 --image-size 8 --epochs 1 --steps-per-epoch 1 -j 0 --tensorboard false"
    assert run(folder, base=flags) == 0
    said = capsys.readouterr().out
    assert f"data: {folder}: train 6 images, 2 classes (left out: 1 .gif); val 4 images, 2 classes" in said

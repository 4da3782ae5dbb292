"""Class folders -> files and labels, and what is said about folders that cannot be trained on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from helpers import make_folder, write_image

from data.folder import FolderError, scan_data_dir


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "set", train=3, val=2, size=8)


def refused(folder: Path) -> str:
    with pytest.raises(FolderError) as caught:
        scan_data_dir(str(folder))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_files_and_labels_in_order(folder: Path):
    train, val = scan_data_dir(str(folder))
    assert train.classes == val.classes == ("a", "b")
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [Path(path).relative_to(folder).as_posix() for path in val.paths] == [
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
    assert refused(folder) == f"no image in {folder}/train for class c: fill or remove the folder"


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


def test_a_flat_val_folder_is_refused_with_what_was_found(folder: Path):
    """R15."""
    shutil.rmtree(folder / "val")
    for name in ("x.JPEG", "y.JPEG"):
        write_image(folder / "val" / name, size=8)
    message = refused(folder)
    assert message.startswith(f"{folder}/val holds 2 files and no class folder")
    assert "a folder of its own" in message


def test_val_labels_follow_trains_class_names(folder: Path):
    """R16: a class that val lacks does not move the labels of the others."""
    shutil.rmtree(folder / "val/a")
    _, val = scan_data_dir(str(folder))
    assert val.labels.tolist() == [1, 1]
    assert val.classes == ("a", "b")


def test_a_class_that_train_has_not_is_refused(folder: Path):
    """R16."""
    write_image(folder / "val/c/x.jpg", size=8)
    assert refused(folder) == f"{folder}/val has class 'c', which train/ has not: rename or remove it"


def test_suffixes_of_any_case_and_what_is_ignored(folder: Path):
    """R18."""
    shutil.rmtree(folder / "train/a")
    for name in ("x.JPEG", "x.Jpg", "x.webp", "x.gif", "y.GIF", "README", ".hidden"):
        path = folder / "train/a" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (folder / "train/notes.txt").touch()
    train, _ = scan_data_dir(str(folder))
    assert [Path(path).name for path in train.paths if "/a/" in path] == ["x.JPEG", "x.Jpg", "x.webp"]
    assert train.ignored == {".gif": 2, "no suffix": 1, "hidden": 1, "outside class folders": 1}
    assert "left out: 2 .gif, 1 hidden, 1 no suffix, 1 outside class folders" in train.describe()


def test_images_in_folders_below_a_class_count_and_links_are_followed(folder: Path):
    write_image(folder / "train/a/more/deep/z.jpg", size=8)
    os.symlink(folder / "train/b", folder / "train/c")
    os.symlink(folder / "train/b/000.jpg", folder / "train/a/link.jpg")
    train, _ = scan_data_dir(str(folder))
    assert train.classes == ("a", "b", "c")
    assert [train.labels.tolist().count(label) for label in range(3)] == [5, 3, 3]


def test_a_wrong_dir_is_named_with_what_it_holds(tmp_path: Path, folder: Path):
    shape = "DIR must hold train/ and val/"
    assert refused(tmp_path / "none") == f"no folder {tmp_path}/none: {shape} with one folder a class"
    (tmp_path / "empty").mkdir()
    assert "it is empty" in refused(tmp_path / "empty")
    assert f"{folder}/train has no train/ folder (it holds a, b): {shape}" in refused(folder / "train")
    shutil.rmtree(folder / "val")
    assert f"{folder} has no val/ folder (it holds train)" in refused(folder)
    (folder / "val").touch()
    assert f"{folder} has no val/ folder (it holds train, val)" in refused(folder)


def test_no_image_at_all_is_refused_with_the_suffixes(folder: Path):
    for path in (folder / "val").glob("*/*.jpg"):
        path.rename(path.with_suffix(".npy"))
    message = refused(folder)
    assert message.startswith(f"no image below {folder}/val")
    assert ".jpeg, .jpg" in message

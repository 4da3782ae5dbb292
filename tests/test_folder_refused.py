"""What is said about folders that cannot be trained on, each in one sentence."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import folder_refused, make_folder, write_image

import data.folder
from data.folder_cache import list_and_keep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "set", train=3, val=2, size=8)


def test_a_flat_val_folder_is_refused_with_what_was_found(folder: Path):
    """R15."""
    shutil.rmtree(folder / "val")
    for name in ("x.JPEG", "y.JPEG"):
        write_image(folder / "val" / name, size=8)
    message = folder_refused(folder)
    assert message.startswith(f"{folder}/val holds 2 files and no class folder")
    assert "a folder of its own" in message
    assert "--val-labels FILE" in message


def test_a_class_that_train_has_not_is_refused(folder: Path):
    """R16."""
    write_image(folder / "val/c/x.jpg", size=8)
    assert folder_refused(folder) == f"{folder}/val has class 'c', which train/ has not: rename or remove it"


def test_a_class_that_appears_during_the_listing_gets_no_label(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def list_later(train: str) -> object:
        write_image(folder / "train/c/x.jpg", size=8)
        return list_and_keep(train)

    monkeypatch.setattr(data.folder, "list_and_keep", list_later)
    assert folder_refused(folder) == f"the class folders of {folder}/train changed while they were listed: start again"


@pytest.mark.parametrize("at", ["", "train", "train/a", "val", "val/b"])
def test_a_folder_that_cannot_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch, at: str):
    if not at:
        shutil.rmtree(folder / "val")
    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, locked(folder / at, getattr(os, name)))
    assert folder_refused(folder).startswith(f"cannot list {folder / at}: Permission denied; make it readable")


def locked(folder: Path, function: Callable[[str], object]) -> Callable[[str], object]:
    """``function`` as it would answer a user who may not read ``folder``; root, who may run this, may read anything."""

    def answer(path: str) -> object:
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", path)
        return function(path)

    return answer


def test_a_wrong_dir_is_named_with_what_it_holds(tmp_path: Path, folder: Path):
    shape = "DIR must hold train/ and val/"
    assert folder_refused(tmp_path / "none") == f"no folder {tmp_path}/none: {shape} with one folder a class"
    (tmp_path / "empty").mkdir()
    assert "it is empty" in folder_refused(tmp_path / "empty")
    message = folder_refused(folder / "train")
    assert message.startswith(f"{folder}/train has no train/ folder (it holds a, b): {shape}")
    assert message.endswith(f"; {folder} does")
    assert folder_refused(folder.parent).endswith(f"; {folder} does")
    (tmp_path / "file").touch()
    assert folder_refused(tmp_path / "file").startswith(f"{tmp_path}/file is no folder")
    shutil.rmtree(folder / "val")
    assert f"{folder} has no val/ folder (it holds train)" in folder_refused(folder)
    (folder / "val").touch()
    assert f"{folder} has no val/ folder (it holds train, val)" in folder_refused(folder)


def test_no_image_at_all_is_refused_with_the_suffixes(folder: Path):
    for path in (folder / "val").glob("*/*.jpg"):
        path.rename(path.with_suffix(".npy"))
    message = folder_refused(folder)
    assert message.startswith(f"no image below {folder}/val")
    assert ".jpeg, .jpg" in message


def test_the_programs_own_data_folder_is_no_data_set():
    own = Path(__file__).parent.parent / "data"
    assert "is this program's own code, not a data set" in folder_refused(own)


def test_a_train_folder_without_class_folders_is_refused(folder: Path):
    shutil.rmtree(folder / "train")
    write_image(folder / "train/x.jpg", size=8)
    message = folder_refused(folder)
    assert message.startswith(f"{folder}/train holds 1 files and no class folder")
    assert "--val-labels" not in message


def test_val_is_found_wrong_before_train_is_listed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """The listing of train may take minutes."""
    write_image(folder / "val/c/x.jpg", size=8)
    looked: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (looked.append(str(path)), scandir(path))[1])
    folder_refused(folder)
    assert [path for path in looked if path.startswith(f"{folder}/train/")] == []


@pytest.mark.parametrize("wrong", ["no train", "flat val", "empty class", "unknown class", "own code"])
def test_a_wrong_dir_ends_the_run_as_the_users_mistake(folder: Path, run, capsys, wrong: str):
    if wrong == "no train":
        shutil.rmtree(folder / "train")
    elif wrong == "flat val":
        shutil.rmtree(folder / "val")
        write_image(folder / "val/x.jpg", size=8)
    elif wrong == "empty class":
        (folder / "train/c").mkdir()
    elif wrong == "unknown class":
        write_image(folder / "val/c/x.jpg", size=8)
    at = Path(__file__).parent.parent / "data" if wrong == "own code" else folder
    assert run(at, base="-a toy_models:tiny") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not Path("runs").exists()

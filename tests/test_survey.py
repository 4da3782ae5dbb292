"""--check-data on a folder that cannot be trained on: all that is wrong with its classes, and its files all the same."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from helpers import damage, make_folder, write_image
from test_check_data import checked

from data.folder import FolderError
from data.preflight_report import as_lines
from data.survey import survey


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "set", train=4, val=2, size=24)


@pytest.mark.parametrize("name", ["__MACOSX/x.jpg", "._c/x.jpg", ".c/x.jpg", "a/__MACOSX/x.jpg", "a/._x.jpg"])
def test_a_folder_that_cannot_be_trained_on_goes_by_the_same_names(folder: Path, name: str) -> None:
    shutil.rmtree(folder / "val")
    before = checked(folder)
    for path in (folder / "train" / name, folder / "train" / os.path.dirname(name) / ".h.jpg"):
        write_image(path, size=24)
    (folder / "train/a/broken.jpg").symlink_to(folder / "none")
    after = checked(folder)
    assert after.findings == before.findings
    assert (after.bad, after.splits["train"].classes) == ([], {"a": 4, "b": 4})


def test_every_class_mismatch_is_reported_and_the_files_are_checked_all_the_same(folder: Path) -> None:
    (folder / "train/empty1").mkdir()
    (folder / "train/empty2").mkdir()
    write_image(folder / "val/stranger/x.jpg", size=8)
    damage(folder)
    report = checked(folder)
    empty, unknown = report.findings
    assert "train holds no image of 2 of 4 classes (empty1, empty2)" in empty
    assert "val holds images of 1 of 3 classes (stranger) that train/ has not" in unknown
    assert len(report.bad) == 4
    assert report.splits["val"].images == 5
    assert report.splits["train"].classes["empty1"] == 0
    assert not report.ok


def test_a_flat_val_and_a_missing_val_are_findings(folder: Path) -> None:
    for path in sorted(folder.glob("val/*/*.jpg")):
        path.rename(folder / "val" / f"{path.parent.name}{path.name}")
    for name in "ab":
        (folder / "val" / name).rmdir()
    report = checked(folder)
    assert len(report.findings) == 1
    assert f"{folder}/val holds 4 images and no class folder" in report.findings[0]
    assert report.splits["val"].images == 4
    shutil.rmtree(folder / "val")
    report = checked(folder)
    assert report.findings == [f"{folder} has no val/ folder: DIR must hold train/ and val/, one folder a class"]
    assert list(report.splits) == ["train"]
    assert report.splits["train"].images == 8


def test_a_list_of_labels_that_is_refused_is_a_finding_and_a_flat_val_then_none(folder: Path) -> None:
    shutil.rmtree(folder / "val")
    write_image(folder / "val/x.jpg", size=8)

    def scan():
        raise FolderError("--val-labels labels.csv names no file of val")

    indexes, findings = survey(str(folder), scan, True)
    assert findings == ["--val-labels labels.csv names no file of val"]
    assert [len(index) for index in indexes.values()] == [8, 1]
    _, findings = survey(str(folder), scan, False)
    assert ["no class folder" in text for text in findings] == [True]


def test_a_split_without_images_is_a_finding(folder: Path) -> None:
    for path in folder.glob("val/*/*"):
        path.unlink()
    report = checked(folder)
    assert [text.split(":")[0] for text in report.findings] == [f"no image below {folder}/val"]
    assert report.splits["val"].images == 0
    as_lines(report)


@pytest.mark.parametrize("name", ["val/self", "val/a/self.jpg", "train/self", "val"])
def test_a_link_to_itself_hides_no_other_file(folder: Path, name: str) -> None:
    if name == "val":
        shutil.rmtree(folder / "val")
    (folder / name).symlink_to(os.path.basename(name))
    damage(folder)
    report = checked(folder)
    assert len(report.bad) == 4
    assert len(report.findings) == (name == "val")
    assert report.splits["train"].images == 13

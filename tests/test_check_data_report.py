"""--check-data: what is in both splits, and what the report says of it all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers import make_folder, write_image
from preflight_cases import checked

from data.preflight_report import BAD_SHOWN, as_json, as_lines, verdict


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "set", train=4, val=2, size=24)


# Twins


def test_names_and_contents_in_both_splits_are_notes(unique_names: Path) -> None:
    shutil.copy(unique_names / "train/b/001.jpg", unique_names / "val/b/leak.jpg")
    write_image(unique_names / "val/a/002.jpg", seed=99, size=24)
    report = checked(unique_names)
    assert report.ok, "notes are no faults"
    assert [tuple(Path(name).relative_to(unique_names).as_posix() for name in pair) for pair in report.same_names] == [
        ("val/a/002.jpg", "train/a/002.jpg")
    ]
    assert [
        tuple(Path(name).relative_to(unique_names).as_posix() for name in pair) for pair in report.same_contents
    ] == [("val/b/leak.jpg", "train/b/001.jpg")]
    notes = [line for line in as_lines(report) if line.startswith("note: ")]
    assert notes[0].startswith("note: 1 of val's files have the name of one of train's: ")
    assert notes[1].startswith("note: 1 of val's files have the very bytes of one of train's: ")


def test_a_name_that_every_class_has_counts_for_each_file(folder: Path) -> None:
    assert len(checked(folder).same_names) == 4


def test_bad_files_are_no_twins(unique_names: Path) -> None:
    for split in ("train", "val"):
        (unique_names / split / "a" / f"{split}_empty.jpg").touch()
    assert checked(unique_names).same_contents == []


# Reports


def test_the_text_is_capped_and_the_json_is_not(folder: Path) -> None:
    for number in range(BAD_SHOWN + 3):
        (folder / f"train/b/bad{number:03d}.jpg").touch()
    report = checked(folder)
    lines = as_lines(report)
    assert sum(line.startswith("bad file: ") for line in lines) == BAD_SHOWN
    assert "and 3 more bad files (--json lists all)" in lines
    content = json.loads(json.dumps(as_json(report, str(folder))))
    assert len(content["bad_files"]) == BAD_SHOWN + 3
    assert content["bad_files"][0] == {
        "split": "train",
        "name": f"{folder}/train/b/bad000.jpg",
        "class": "b",
        "reason": "the file is empty",
    }
    assert content["ok"] is False
    assert content["splits"]["train"]["classes"] == {"a": 4, "b": 4 + BAD_SHOWN + 3}
    assert f"{BAD_SHOWN + 3} files cannot be read" in verdict(report)
    assert "\n" not in verdict(report)


def test_classes_are_summed_up(folder: Path) -> None:
    for number in range(3):
        (folder / f"train/b/00{number}.jpg").unlink()
    lines = as_lines(checked(folder))
    assert "  images a class: 1 to 4, median 2.5; fewest: b 1, a 4" in lines

"""--class-map: which class has which index, written once and then read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers import make_folder, write_image

from data.folder import FolderError, scan_data_dir


def sentence(scan, *arguments, **options) -> str:
    with pytest.raises(FolderError) as caught:
        scan(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "classes", ("a", "b", "c"), train=1, val=1, size=8)


def test_a_class_map_is_written_and_then_holds(classes: Path, tmp_path: Path):
    file = tmp_path / "map.json"
    first, _ = scan_data_dir(str(classes), class_map=str(file))
    assert json.loads(file.read_text()) == ["a", "b", "c"]
    file.write_text('["c", "a", "b"]')
    train, val = scan_data_dir(str(classes), class_map=str(file))
    assert train.classes == val.classes == ("c", "a", "b")
    assert train.labels.tolist() == val.labels.tolist() == [1, 2, 0]
    assert list(train.paths) == list(first.paths)
    assert file.read_text() == '["c", "a", "b"]'


def test_a_class_map_of_names_to_indices_is_read_too(classes: Path, tmp_path: Path):
    file = tmp_path / "map.json"
    file.write_text('{"a": 2, "b": 0, "c": 1}')
    assert scan_data_dir(str(classes), class_map=str(file))[0].classes == ("b", "c", "a")


def test_a_missing_class_keeps_its_index(classes: Path, tmp_path: Path):
    """A model of 1000 classes goes on with, or is validated on, some of them."""
    file = tmp_path / "map.json"
    file.write_text('["a", "before", "b", "c", "only in val"]')
    write_image(classes / "val/only in val/x.jpg", size=8)
    train, val = scan_data_dir(str(classes), class_map=str(file))
    assert train.labels.tolist() == [0, 2, 3]
    assert val.labels.tolist() == [0, 2, 3, 4]
    assert train.describe() == "3 images, 5 classes, 2 of them without an image"


def test_folders_that_the_class_map_has_not_are_refused(classes: Path, tmp_path: Path):
    file = tmp_path / "map.json"
    file.write_text('["a", "b"]')
    message = sentence(scan_data_dir, str(classes), class_map=str(file))
    assert message.startswith(f"{classes}/train has class 'c', which --class-map {file} has not")
    file.write_text('["a", "b", "c"]')
    write_image(classes / "val/d/x.jpg", size=8)
    message = sentence(scan_data_dir, str(classes), class_map=str(file))
    assert f"has class 'd', which neither train/ nor --class-map {file} has" in message
    (classes / "train/b/000.jpg").unlink()
    shutil.rmtree(classes / "val/d")
    assert "for class b" in sentence(scan_data_dir, str(classes), class_map=str(file))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "is no JSON"),
        ("[", "is no JSON"),
        (b"\xff\xff", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("3", "must hold a JSON list"),
        ("[]", "must hold a JSON list"),
        ("{}", "must hold a JSON list"),
        ('["a", 1]', "must hold a JSON list"),
        ('{"a": 0, "b": 2}', "without a gap"),
        ('{"a": 0, "b": true}', "without a gap"),
        ('{"a": "0"}', "without a gap"),
        ('["a", "b", "a", "c"]', "names 'a' more than once"),
        ('{"a": 0, "b": 1, "c": 2, "a": 0}', "names 'a' more than once"),
        ('{"a": 0, "b": 1, "c": 1}', "without a gap"),
        ('[{"a": 0}]', "must hold a JSON list"),
    ],
)
def test_a_file_that_is_no_class_map_is_one_sentence(classes: Path, tmp_path: Path, text: str | bytes, found: str):
    file = tmp_path / "map.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert found in sentence(scan_data_dir, str(classes), class_map=str(file))


def test_a_class_map_that_cannot_be_read_or_written_is_one_sentence(classes: Path, tmp_path: Path):
    assert "Is a directory" in sentence(scan_data_dir, str(classes), class_map=str(tmp_path))
    assert "No such file" in sentence(scan_data_dir, str(classes), class_map=str(tmp_path / "no/map.json"))


def test_no_class_map_is_written_for_a_folder_that_is_refused(classes: Path, tmp_path: Path):
    (classes / "train/d").mkdir()
    sentence(scan_data_dir, str(classes), class_map=str(tmp_path / "map.json"))
    assert not (tmp_path / "map.json").exists()


def test_a_class_map_is_written_through_a_link(classes: Path, tmp_path: Path):
    (tmp_path / "shared").mkdir()
    link = tmp_path / "map.json"
    link.symlink_to("shared/map.json")
    scan_data_dir(str(classes), class_map=str(link))
    assert link.is_symlink()
    assert json.loads((tmp_path / "shared/map.json").read_text()) == ["a", "b", "c"]
    link.unlink()
    link.symlink_to("map.json")
    assert "map.json: Too many levels" in sentence(scan_data_dir, str(classes), class_map=str(link))

"""--check-data: every bad file by name and reason, counts, twins; JSON; exit codes. No training."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from helpers import damage, make_folder, write_image
from PIL import Image
from preflight_cases import checked

from data.decode import Decoder
from data.folder import scan_data_dir
from data.preflight import CheckOptions, DataReport, Looker, check_indexes, lacks_its_end
from data.preflight_report import as_lines

MODES = ("headers", "full")
WORKERS = (0, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "set", train=4, val=2, size=24)


def bad_names(report: DataReport) -> dict[str, str]:
    return {os.path.basename(bad.name): bad.reason for _, bad in report.bad}


# Files


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("how", MODES)
def test_a_good_folder_is_counted(unique_names: Path, how: str, workers: int) -> None:
    report = checked(unique_names, how, workers)
    assert report.ok
    train, val = report.splits["train"], report.splits["val"]
    assert (train.images, train.readable, train.classes) == (8, 8, {"a": 4, "b": 4})
    assert (val.images, val.readable, val.classes) == (4, 4, {"a": 2, "b": 2})
    assert train.sides == (24, 24, 24, 24)
    assert dict(train.formats) == {"JPEG": 8}
    assert train.total_bytes == sum(path.stat().st_size for path in unique_names.glob("train/*/*"))
    assert as_lines(report)[-1].startswith("nothing wrong found")


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("how", MODES)
def test_each_kind_of_damage_is_named_with_a_reason(folder: Path, how: str, workers: int) -> None:
    damage(folder)
    report = checked(folder, how, workers)
    found = bad_names(report)
    assert set(found) == {"empty.jpg", "page.jpg", "noise.jpg", "half.jpg"}
    assert found["empty.jpg"] == "the file is empty"
    assert "not an image" in found["page.jpg"]
    assert "not an image" in found["noise.jpg"]
    assert "truncated" in found["half.jpg"].lower()
    assert not report.ok
    assert {bad.class_name for _, bad in report.bad} == {"a"}
    assert report.splits["train"].classes["a"] == 9


def test_a_file_that_cannot_be_opened_is_a_bad_one(folder: Path) -> None:
    index, _ = scan_data_dir(str(folder))
    Path(index.name(2)).unlink()
    report = check_indexes({"train": index}, CheckOptions("headers", 0, "ignore", None))
    assert bad_names(report) == {"002.jpg": "No such file or directory"}


def test_only_full_sees_damage_inside_the_pixels(folder: Path) -> None:
    """A PNG whose end is in place and whose middle is not."""
    path = write_image(folder / "train/a/x.png", size=64)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 200] = bytes(200)
    path.write_bytes(data)
    assert checked(folder, "headers").ok
    assert set(bad_names(checked(folder, "full"))) == {"x.png"}


def test_an_image_above_the_bound_is_a_bad_one(folder: Path) -> None:
    write_image(folder / "val/b/large.jpg", size=60)
    (reason,) = bad_names(checked(folder, pixels=24 * 24)).values()
    assert "--max-image-pixels" in reason


@pytest.mark.parametrize("suffix", ["JPEG", "PNG", "WEBP"])
def test_the_end_mark_of_a_format(suffix: str) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 60).convert("RGB").save(buffer, suffix)
    data = buffer.getvalue()
    assert not lacks_its_end(data)
    assert not lacks_its_end(data + bytes(100)), "bytes after the end are common"
    assert lacks_its_end(data[: len(data) * 2 // 3])


def test_the_end_of_a_thumbnail_is_not_the_files_end() -> None:
    buffer = io.BytesIO()
    small = io.BytesIO()
    Image.new("RGB", (16, 16)).save(small, "JPEG")
    noise = Image.effect_noise((64, 64), 60).convert("RGB")
    noise.save(buffer, "JPEG", comment=small.getvalue())
    data = buffer.getvalue()
    assert not lacks_its_end(data)
    assert lacks_its_end(data[:-20])


def test_a_jpeg_that_lacks_the_mark_alone_is_no_bad_file_where_training_reads_it(folder: Path) -> None:
    """Headers and full agree with the decoder of training, whatever that says."""
    path = folder / "train/a/000.jpg"
    path.write_bytes(path.read_bytes()[:-2])
    index = scan_data_dir(str(folder))[0]
    number = next(n for n in range(len(index)) if index.name(n) == str(path))
    reasons = [Looker(index, Decoder(), full).__getitems__([number])[0].reason for full in (False, True)]
    assert reasons[0] == reasons[1]

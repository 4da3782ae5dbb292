"""scripts/make_digits.py: the split, the files, and what happens to a folder that is not empty."""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_digits", ROOT / "scripts" / "make_digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_digits = load_script()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sklearn", reason="make_digits needs scikit-learn (pip install scikit-learn)")
    out = tmp_path_factory.mktemp("digits") / "new" / "out"
    assert make_digits.main([str(out)]) == 0
    return out


def pictures(out: Path, split: str) -> list[Path]:
    return sorted((out / split).glob("*/*.png"))


def test_every_digit_is_written_once_and_split_80_20(written: Path) -> None:
    train, val = pictures(written, "train"), pictures(written, "val")
    assert len(train) + len(val) == 1797
    assert sorted(path.stem for path in train + val) == [f"{index:04d}" for index in range(1797)]
    assert sorted(path.name for path in written.iterdir()) == ["train", "val"]
    in_all = Counter(path.parent.name for path in train + val)
    in_val = Counter(path.parent.name for path in val)
    assert sorted(in_all) == sorted(in_val) == [str(digit) for digit in range(10)]
    for digit, count in in_all.items():
        assert abs(in_val[digit] - count / 5) < 1


def test_pixels_are_the_originals_enlarged(written: Path) -> None:
    images, digits = make_digits.load_digits()
    for index, path in [(0, "train/0/0000.png"), (1, "train/1/0001.png")]:
        assert digits[index] == int(path.split("/")[1])
        with Image.open(written / path) as image:
            assert (image.format, image.mode, image.size) == ("PNG", "L", (32, 32))
            blocks = np.asarray(image, dtype=float).reshape(8, 4, 8, 4).mean(axis=(1, 3))
        # Bicubic rounds off strokes, so the mean of a 4x4 block follows its pixel without being equal to it.
        assert np.corrcoef(blocks.ravel(), images[index].ravel())[0, 1] > 0.97


def test_the_range_is_the_full_one() -> None:
    corners = np.zeros((8, 8))
    corners[:4] = 16
    values = np.asarray(make_digits.enlarge(corners))
    assert (values.min(), values.max()) == (0, 255)


def test_a_second_run_says_that_all_is_there(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some = written / "train/0/0000.png"
    before = some.stat().st_mtime_ns
    assert make_digits.main([str(written)]) == 0
    shown = capsys.readouterr().out
    assert "already holds the digits" in shown
    assert f"python train.py {written} -c configs/digits.yaml" in shown
    assert some.stat().st_mtime_ns == before


@pytest.mark.parametrize("name", ["notes.txt", "train/0/0000.png", "val/cat/1.jpg"])
def test_other_files_are_never_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    pytest.importorskip("sklearn", reason="make_digits needs scikit-learn (pip install scikit-learn)")
    mine = tmp_path / name
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    assert make_digits.main([str(tmp_path)]) == 2
    assert_one_line(capsys, "already holds other files")
    assert mine.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


def test_a_file_in_place_of_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="make_digits needs scikit-learn (pip install scikit-learn)")
    out = tmp_path / "out"
    out.write_text("mine")
    assert make_digits.main([str(out)]) == 2
    assert_one_line(capsys, "is a file")
    assert make_digits.main([str(out / "below")]) == 2
    assert_one_line(capsys, "cannot write")


def test_an_interruption_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(image: object) -> Image.Image:
        raise KeyboardInterrupt

    monkeypatch.setattr(make_digits, "enlarge", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_digits.write_files(tmp_path, [None], ["train/0/0000.png"])
    assert list(tmp_path.iterdir()) == []


def test_without_scikit_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert make_digits.main([str(tmp_path / "out")]) == 2
    assert_one_line(capsys, "pip install scikit-learn")
    assert not (tmp_path / "out").exists()


def assert_one_line(capsys: pytest.CaptureFixture[str], part: str) -> None:
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert part in shown.err

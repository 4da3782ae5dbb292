"""scripts/bench/make_photos.py: what lies in the folder, and that a seed fixes it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

BENCH = Path(__file__).resolve().parent.parent / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import make_photos  # noqa: E402

PHOTOS = "--classes 2 --train 2 --val 1".split()


def photos(out: Path) -> dict[str, bytes]:
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in sorted(out.rglob("*.jpg"))}


def test_make_photos_writes_class_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from data.folder import scan_data_dir

    assert make_photos.main([str(tmp_path / "new" / "p"), *PHOTOS]) == 0
    train, val = scan_data_dir(str(tmp_path / "new" / "p"))
    assert (len(train), len(val), train.classes) == (4, 2, ("class000", "class001"))
    assert not train.ignored
    assert sorted(path.name for path in (tmp_path / "new" / "p").iterdir()) == ["train", "val"]
    for path in [index.name(number) for index in (train, val) for number in range(len(index))]:
        with Image.open(path) as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (500, 375))
    assert "4 training and 2 validation photos" in capsys.readouterr().out


def test_make_photos_is_fixed_by_its_seed(tmp_path: Path) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        assert make_photos.main([str(tmp_path / name), *PHOTOS, "--seed", seed]) == 0
    a, b, c = (photos(tmp_path / name) for name in "abc")
    assert a == b
    assert a.keys() == c.keys()
    assert not any(a[name] == c[name] for name in a)
    assert len(set(a.values())) == len(a)


def test_make_photos_large_has_noise_that_fills_the_file(tmp_path: Path) -> None:
    few = "--large --classes 1 --train 1 --val 1".split()
    assert make_photos.main([str(tmp_path / "noisy"), *few]) == 0
    assert make_photos.main([str(tmp_path / "clean"), *few, "--noise", "0"]) == 0
    noisy, clean = photos(tmp_path / "noisy"), photos(tmp_path / "clean")
    with Image.open(tmp_path / "noisy/train/class000/0000.jpg") as image:
        assert image.size == (2048, 1536)
    assert all(len(noisy[name]) > 1.5 * len(clean[name]) for name in noisy)


def test_make_photos_works_without_scikit_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    for name in "ab":
        assert make_photos.main([str(tmp_path / name), *PHOTOS]) == 0
    assert "scikit-learn is not installed" in capsys.readouterr().out
    assert photos(tmp_path / "a") == photos(tmp_path / "b")
    with Image.open(tmp_path / "a/train/class000/0000.jpg") as image:
        assert np.asarray(image).std() > 20


def test_make_photos_keeps_off_a_folder_that_is_not_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    assert make_photos.main([str(tmp_path)]) == 2
    assert make_photos.main([str(tmp_path / "mine.txt")]) == 2
    assert make_photos.main([str(tmp_path / "x"), "--noise", "-1"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_make_photos_shows_its_options_from_any_folder(tmp_path: Path) -> None:
    script = str(BENCH / "make_photos.py")
    done = subprocess.run([sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--large" in done.stdout

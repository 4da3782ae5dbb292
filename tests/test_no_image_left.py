"""--bad-images skip where not one image of a split can be read: an end with exit code 5, whatever the limit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dirty_files import write_empty
from helpers import launch, make_folder

FLAGS = "-a toy_models:tiny -b 4 --image-size 32 --tensorboard false -p 1 --epochs 2 -j 0 --bad-images skip"


def broken(tmp_path: Path, split: str) -> Path:
    """Six images a split, fewer than the limit; those of one split are empty files."""
    folder = make_folder(tmp_path / "set", train=3, val=3)
    for path in folder.glob(f"{split}/*/*.jpg"):
        write_empty(path)
    return folder


@pytest.mark.parametrize("limit", [(), ("--max-bad-images", "100%")], ids=["default", "all"])
@pytest.mark.parametrize("split", ["train", "val"])
def test_a_split_without_a_readable_image_ends_the_run(run, tmp_path: Path, capsys, split: str, limit: tuple[str, ...]):
    folder = broken(tmp_path, split)
    assert run(folder, *limit, "--output-dir", "run", base=FLAGS) == 5
    captured = capsys.readouterr()
    error = captured.err.strip()
    assert error.startswith(f"error: no image of {split} is left, 6 of 6 cannot be read; the last is {folder}/{split}/")
    assert "(a: the file is empty)" in error or "(b: the file is empty)" in error
    assert "\n" not in error
    assert " * Prec@1" not in captured.out
    status = json.loads(Path("run/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 5)
    assert len(Path("run/bad_images.txt").read_text().splitlines()) == 6


def test_an_evaluation_of_nothing_is_no_result(run, tmp_path: Path, capsys):
    assert run(broken(tmp_path, "val"), "-e", base=FLAGS) == 5
    captured = capsys.readouterr()
    assert "error: no image of val is left" in captured.err
    assert " * Prec@1" not in captured.out


def test_the_loader_alone_makes_no_speed_of_nothing(run, tmp_path: Path, capsys):
    assert run(broken(tmp_path, "train"), "--bench-data", 3, base=FLAGS) == 5
    captured = capsys.readouterr()
    assert "error: no image of train is left" in captured.err
    assert "images/s" not in captured.out


@pytest.mark.parametrize("split", ["train", "val"])
def test_two_ranks_end_alike(tmp_path: Path, split: str):
    """Of six images to train on two ranks take four an epoch: two are too few for both."""
    flags = "-a toy_models:tiny -b 2 --num-classes 2 -j 0 --bad-images skip --output-dir run"
    done = launch(tmp_path, 2, broken(tmp_path, split), *flags.split(), timeout=120)
    assert done.returncode == 1
    assert "exitcode  : 5" in done.stderr
    assert (
        done.stderr.count(f"error: no image of {split} is left, {4 if split == 'train' else 6} of 6 cannot be read")
        == 1
    )
    assert "Traceback" not in done.stderr.split("torch/distributed/elastic")[0]

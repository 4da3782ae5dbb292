"""A folder of everything that real ones hold: every odd file is used, every bad one is named, and no rank hangs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dirty_files import ALL_KINDS, odd_but_good, spoil
from helpers import launch, make_folder, rows

# Of batches of 8 each keeps two readable images at least, also if it meets all bad ones: no rank drops any.
FLAGS = "-a toy_models:tiny -b 8 --image-size 32 --num-classes 2 --tensorboard false -p 1 --epochs 1 --output-dir run"
TRAIN, TRAIN_GOOD = 32, 26
VAL_GOOD = 14


@pytest.fixture
def bad(tmp_path: Path) -> dict[str, Path]:
    """The bad files by path, in ``set``: 32 images to train on, 20 to validate on, six of each bad."""
    folder = make_folder(tmp_path / "set", train=8, val=2)
    for name, data in odd_but_good().items():
        (folder / "train/a" / name).write_bytes(data)
        (folder / "val/b" / name).write_bytes(data)
    (folder / "train/a/.hidden.jpg").write_bytes(b"")
    (folder / "train/.ipynb_checkpoints").mkdir()
    (folder / "val/b/readme.txt").write_text("no image")
    paths = spoil(folder / "train/a", kinds=ALL_KINDS) + spoil(folder / "val/b", kinds=ALL_KINDS)
    assert len(paths) == 12
    return {str(path): path for path in paths}


def started(ranks: int, run, folder: Path, capfd, *flags: object) -> tuple[int, str, str]:
    """Exit code of the run itself, stdout and stderr; one rank in this process, two under torchrun."""
    if ranks == 1:
        code = run(*flags, base=FLAGS)
        printed = capfd.readouterr()
        return code, printed.out, printed.err
    done = launch(folder, ranks, *FLAGS.split(), *flags, timeout=120)
    if done.returncode == 0:
        return 0, done.stdout, done.stderr
    assert done.returncode == 1
    assert "exitcode  : 5" in done.stderr, done.stderr[-2000:]
    return 5, done.stdout, done.stderr


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_fail_ends_at_a_bad_file_and_names_it(run, bad, tmp_path: Path, capfd, workers: int, ranks: int):
    code, _, errors = started(ranks, run, tmp_path, capfd, "set", "-j", workers)
    assert code == 5
    named = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert named
    for line in named:
        name, rest = line.removeprefix("error: cannot read ").split(" (class ")
        assert str(tmp_path / name) in bad, line
        assert rest.startswith("a): ")
    assert len(named) == 1 or ranks == 2, "each rank may have met one"
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 5)
    assert not (tmp_path / "run/bad_images.txt").exists()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_skip_uses_every_good_file_and_names_every_bad_one(run, bad, tmp_path: Path, capfd, workers: int, ranks: int):
    code, printed, errors = started(ranks, run, tmp_path, capfd, "set", "-j", workers, "--bad-images", "skip")
    assert code == 0, errors[-2000:]
    assert "Warning" not in errors
    assert "EXIF" not in errors
    assert "note: 6 of 32 train images, 6 of 20 val images cannot be read and were left out" in printed
    (epoch,) = rows(tmp_path / "run", "epoch")
    assert epoch["images_seen"] == TRAIN_GOOD
    assert epoch["val_images"] == VAL_GOOD
    assert epoch["step"] == TRAIN // (8 * ranks)
    for share, count in ((epoch["train_acc1"], TRAIN_GOOD), (epoch["val_acc1"], VAL_GOOD)):
        right = share * count / 100
        assert right == pytest.approx(round(right), abs=1e-3)
    lines = [line.split("\t") for line in (tmp_path / "run/bad_images.txt").read_text().splitlines()]
    assert sorted(str(tmp_path / name) for _, name, _, _ in lines) == sorted(bad)
    assert {(split, class_name) for split, _, class_name, _ in lines} == {("train", "a"), ("val", "b")}
    reasons = {Path(name).name: reason for _, name, _, reason in lines}
    assert "empty" in reasons["empty.jpg"]
    assert "floating-point" in reasons["float.jpg"]
    assert "30000x30000 is more than" in reasons["bomb.png"]
    assert "not an image" in reasons["html.jpg"]
    assert "not an image" in reasons["random.jpg"]
    assert "runcated" in reasons["cut.jpg"]

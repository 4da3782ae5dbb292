"""A run goes on with other images than it began with: told between epochs, refused inside one."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import load, make_folder, write_image

from scripts import make_shards

FLAGS = "-a toy_models:tiny -b 8 --image-size 32 --tensorboard false -p 1 -j 0"


def begun(run, tmp_path: Path, *flags: object, shards: bool = False) -> list[object]:
    """Start a run of three epochs of two steps; the flags that name its data."""
    folder = make_folder(tmp_path / "set", train=8, val=2)
    data: list[object] = as_shards(tmp_path, "one") if shards else [folder]
    assert run(*data, "--epochs", 3, "--output-dir", "run", *flags, base=FLAGS) == 0
    return data


def as_shards(tmp_path: Path, name: str) -> list[object]:
    out = tmp_path / name
    assert make_shards.main([str(tmp_path / "set"), str(out)]) == 0
    return ["--train-shards", f"{out}/train-*.tar", "--val-shards", f"{out}/val-*.tar"]


def resumed(run, capsys, *flags: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run("--resume", "run", *flags, base=None)
    return code, *capsys.readouterr()


def grow(tmp_path: Path) -> None:
    write_image(tmp_path / "set/train/a/new.jpg")


def shrink(tmp_path: Path) -> None:
    (tmp_path / "set/train/b/000.jpg").unlink()


def move(tmp_path: Path) -> None:
    """As many images, one of them of another class."""
    (tmp_path / "set/train/b/000.jpg").rename(tmp_path / "set/train/a/moved.jpg")


@pytest.mark.parametrize("shards", [False, True], ids=["folder", "shards"])
@pytest.mark.parametrize(
    ("change", "now", "then"),
    [(grow, "17", "16"), (shrink, "15", "16"), (move, "16", "16 others by class")],
    ids=["grown", "shrunk", "moved"],
)
def test_inside_an_epoch_other_images_are_refused(run, tmp_path: Path, capsys, change, now: str, then: str, shards):
    """R84: no sample twice, none missed."""
    data = begun(run, tmp_path, "--stop-after-steps", 3, shards=shards)
    change(tmp_path)
    if shards:
        data = as_shards(tmp_path, "two")
    code, _, error = resumed(run, capsys, *data)
    assert code == 2
    where = data[1] if shards else data[0]
    assert error.startswith(
        f"error: {where} has {now} training images, run/checkpoints/last.pt was saved inside epoch 1 of {then}: its place"
    )
    assert error.endswith("begin the epoch anew with --resume run/checkpoints/last.pt --start-epoch 1\n")
    assert error.count("\n") == 1
    code, out, _ = resumed(run, capsys, *data, "--start-epoch", 1)
    assert code == 0
    assert f"note: {where} has {now} training images, the checkpoint's run had {then}" in out
    assert load()["epoch"] == 3


@pytest.mark.parametrize("shards", [False, True], ids=["folder", "shards"])
def test_between_epochs_other_images_are_told(run, tmp_path: Path, capsys, shards: bool):
    data = begun(run, tmp_path, "--stop-after-epochs", 1, shards=shards)
    grow(tmp_path)
    write_image(tmp_path / "set/val/a/new.jpg")
    if shards:
        data = as_shards(tmp_path, "two")
    code, out, _ = resumed(run, capsys, *data, "--stop-after-epochs", 1)
    assert code == 0
    assert "has 17 training images, the checkpoint's run had 16\n" in out
    assert "has 5 validation images, the checkpoint's run had 4: accuracies before and after" in out
    code, out, _ = resumed(run, capsys)
    assert code == 0
    assert "the checkpoint's run had" not in out, "what was told once is the run's data now"


def test_in_the_first_epoch_the_way_out_is_a_new_run(run, tmp_path: Path, capsys):
    begun(run, tmp_path, "--stop-after-steps", 1)
    grow(tmp_path)
    code, _, error = resumed(run, capsys)
    assert code == 2
    assert error.endswith("bring the images back, or start a new run\n")


def test_shards_of_the_same_folder_go_on_inside_an_epoch(run, tmp_path: Path, capsys):
    """Their order, labels and names are the folder's."""
    begun(run, tmp_path, "--stop-after-steps", 1)
    code, out, _ = resumed(run, capsys, *as_shards(tmp_path, "one"))
    assert code == 0
    assert "the checkpoint's run had" not in out


def test_other_names_inside_an_epoch_are_told(run, tmp_path: Path, capsys):
    begun(run, tmp_path, "--stop-after-steps", 1)
    (tmp_path / "set/train/b/000.jpg").rename(tmp_path / "set/train/b/0000.jpg")
    code, out, _ = resumed(run, capsys)
    assert code == 0
    assert "has 16 training images, the checkpoint's run had 16 others by name" in out


def test_a_moved_folder_is_the_same_data(run, tmp_path: Path, capsys):
    begun(run, tmp_path, "--stop-after-steps", 1)
    (tmp_path / "set").rename(tmp_path / "moved")
    code, out, _ = resumed(run, capsys, tmp_path / "moved")
    assert code == 0
    assert "the checkpoint's run had" not in out


@pytest.mark.parametrize(("flag", "then", "now"), [("--seed", 0, 5), ("--ra-reps", 1, 2)])
def test_another_order_is_refused_inside_an_epoch_and_told_between_two(run, tmp_path: Path, capsys, flag, then, now):
    """R84 as above: an epoch half in one order and half in another would repeat samples and miss others."""
    begun(run, tmp_path, "--stop-after-steps", 3)
    code, _, error = resumed(run, capsys, flag, now)
    assert code == 2
    assert error == (
        f"error: {flag} {then} -> {now}: run/checkpoints/last.pt was saved inside epoch 1, whose order follows from it: its place "
        "in the epoch would mean other samples; leave the flag as it was, or begin the epoch anew with "
        "--resume run/checkpoints/last.pt --start-epoch 1\n"
    )
    assert resumed(run, capsys, "--stop-after-steps", 1)[0] == 0
    code, out, _ = resumed(run, capsys, flag, now)
    assert code == 0
    assert f"{flag}: {then} -> {now}" in out


def test_made_up_images_too(run, capsys):
    base = FLAGS.split()
    assert (
        run(*base, "--synthetic-size", 32, "--num-classes", 2, "--output-dir", "run", "--stop-after-steps", 1, base="")
        == 0
    )
    code, _, error = resumed(run, capsys, "--synthetic-size", 40)
    assert code == 2
    assert "error: --synthetic-size has 40 training images" in error

"""``-e`` on a checkpoint: everything comes from the file, and what is given on the command line wins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from helpers import make_folder, rows

# Every one of them other than what a start without flags would choose.
ODD = [
    *("-a", "toy_models:tiny", "-b", 4, "-j", 0, "--image-size", 32, "--val-image-size", 24, "--val-resize", 40),
    *("--interpolation", "bicubic", "--mean", 0.2, 0.3, 0.4, "--std", 0.5, 0.6, 0.7, "--opt-level", "O2"),
    *("--channels-last", "true", "--exif-orientation", "apply", "--tensorboard", "false", "--epochs", 1),
]
SETTINGS = {
    "arch": "toy_models:tiny", "num_classes": 3, "image_size": 32, "val_image_size": 24, "val_resize": 40,
    "interpolation": "bicubic", "mean": [0.2, 0.3, 0.4], "std": [0.5, 0.6, 0.7], "opt_level": "O2",
    "amp_dtype": "bfloat16", "channels_last": True, "exif_orientation": "apply",
}  # fmt: skip


def last_line(path: str) -> dict:
    """Of an epoch."""
    return rows(path, "epoch")[-1]


def resolved(path: str) -> dict:
    return yaml.safe_load(Path(path, "resolved.yaml").read_text())


@pytest.fixture
def trained(run) -> Path:
    """A run on a folder of three classes, with odd settings."""
    make_folder(Path("data"), ("a", "b", "c"), train=4, val=3)
    assert run("data", *ODD, "--output-dir", "run", base="") == 0
    return Path("run/checkpoints/best.pt")


@pytest.mark.parametrize("where", [[], ["data"]], ids=["DIR of the file", "DIR given"])
def test_no_other_flag_is_needed(run, trained: Path, where: list[str]) -> None:
    assert run("-e", "--resume", trained, *where, "--output-dir", "eval", base="") == 0
    found = resolved("eval")
    assert {key: found[key] for key in SETTINGS} == SETTINGS
    assert found["data_dir"] == str(Path("data").absolute())
    trained_row, row = last_line("run"), last_line("eval")
    for key in ("val_loss", "val_acc1", "val_acc5"):
        assert row[key] == trained_row[key], key


def test_from_another_folder_and_after_a_move_of_the_data(run, trained: Path, monkeypatch, capsys) -> None:
    shutil.move("data", "moved")
    capsys.readouterr()
    assert run("-e", "--resume", trained, base="") == 2
    error = capsys.readouterr().err
    assert str(Path("data").absolute()) in error
    assert error.count("\n") == 1
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert run("-e", "--resume", f"../{trained}", "../moved", "--output-dir", "eval", base="") == 0
    assert last_line("eval")["val_loss"] == last_line("../run")["val_loss"]


def test_given_flags_win(run, trained: Path) -> None:
    flags = ["--val-image-size", 32, "--opt-level", "O0", "--mean", 0, 0, 0, "--channels-last", "false", "-b", 2]
    assert run("-e", "--resume", trained, *flags, "--output-dir", "eval", base="") == 0
    found = resolved("eval")
    assert [found[key] for key in ("val_image_size", "opt_level", "mean", "channels_last", "batch_size")] == [
        32, "O0", [0.0, 0.0, 0.0], False, 2,
    ]  # fmt: skip
    assert found["val_resize"] == 40, "it was asked for"
    assert found["std"] == [0.5, 0.6, 0.7]


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        (["--image-size", 48], [48, 48, 55]),
        (["--val-image-size", 28], [32, 28, 32]),
        (["--val-resize", 48], [32, 32, 48]),
        (["--val-image-size", 28, "--val-resize", 28], [32, 28, 28]),
    ],
    ids=str,
)
def test_the_size_of_the_input_can_be_changed(run, flags: list, sizes: list[int]) -> None:
    make_folder(Path("data"), train=4, val=2)
    base = "data -a toy_models:tiny -b 4 -j 0 --image-size 32 --tensorboard false --epochs 1 --output-dir run"
    assert run(base=base) == 0
    assert run("-e", "--resume", "run", *flags, "--output-dir", "eval", base="") == 0
    assert [resolved("eval")[key] for key in ("image_size", "val_image_size", "val_resize")] == sizes
    assert last_line("eval")["val_loss"] != last_line("run")["val_loss"]


@pytest.mark.parametrize(
    ("classes", "expected"),
    [(("a", "b"), "3 classes, this run has 2"), (("a", "b", "c", "d"), "3 classes, this run has 4"), (("a", "b", "x"), "class 'c'")],
    ids=["fewer", "more", "another"],
)  # fmt: skip
def test_other_classes_are_refused(run, trained: Path, capsys, classes: tuple[str, ...], expected: str) -> None:
    make_folder(Path("other"), classes, train=2, val=2)
    capsys.readouterr()
    assert run("-e", "--resume", trained, "other", base="") == 2
    error = capsys.readouterr().err
    assert expected in error
    assert "--weights" not in error, "a new head says nothing about a validation"
    assert error.count("\n") == 1


def test_some_of_the_classes_are_validated_with_a_class_map(run, trained: Path) -> None:
    make_folder(Path("some"), ("a", "c"), train=2, val=2)
    Path("classes.json").write_text('["a", "b", "c"]')
    flags = ["some", "--class-map", "classes.json", "--output-dir", "eval"]
    assert run("-e", "--resume", trained, *flags, base="") == 0
    assert last_line("eval")["val_images"] == 4


def test_a_checkpoint_of_sync_bn_is_validated_on_a_cpu(run, trained: Path, capsys) -> None:
    """R69: it was trained on GPUs; without them there is nothing to synchronise."""
    content = torch.load(trained, weights_only=True)
    for part in ("config", "resolved"):
        content[part] |= {"sync_bn": True, "device": "cuda"}
    torch.save(content, "synced.pt")
    assert run("-e", "--resume", "synced.pt", "--output-dir", "eval", base="") == 0
    assert last_line("eval")["val_loss"] == last_line("run")["val_loss"]
    capsys.readouterr()
    assert run("-e", "--resume", "synced.pt", "--sync-bn", base="") == 2, "asked for now, it is an error"


@pytest.mark.parametrize("form", ["apex", "pytorch/examples"])
def test_a_checkpoint_of_another_script_needs_its_folder_alone(run, trained: Path, form: str) -> None:
    content = torch.load(trained, weights_only=True)
    best = {"apex": "best_prec1", "pytorch/examples": "best_acc1"}[form]
    theirs = {"epoch": 1, "arch": "toy_models:tiny", "state_dict": content["state_dict"], best: 1.0, "optimizer": {}}
    torch.save(theirs, "theirs.pth.tar")
    flags = ["--image-size", 32, "--output-dir", "eval"]
    assert run("-e", "--resume", "theirs.pth.tar", "data", *flags, base="") == 0
    assert resolved("eval")["num_classes"] == 3

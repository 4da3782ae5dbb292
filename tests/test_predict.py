"""scripts/predict.py: class names and input from the checkpoint, the numbers those of the validation."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import pytest
import torch
from helpers import make_folder, write_image
from helpers import rows as records

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "bench")]

import predict  # noqa: E402

CLASSES = ("apple", "pear, ripe", "quince")
CHECKPOINT = "run/checkpoints/last.pt"


@pytest.fixture
def trained(run, capsys) -> None:
    make_folder(Path("data"), CLASSES, train=8, val=4)
    base = "data -a toy_models:tiny -b 8 -j 0 --image-size 32 --val-resize 40 --mean 0.2 0.3 0.4 --lr 3"
    assert run("--epochs", 4, "--tensorboard", "false", "--output-dir", "run", base=base) == 0
    capsys.readouterr()


def rows_of(capsys, *arguments: object, code: int = 0) -> list[dict[str, str]]:
    assert predict.main([CHECKPOINT, *map(str, arguments), "--csv"]) == code
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


@pytest.mark.parametrize("workers", [0, 2])
def test_it_is_right_as_often_as_the_validation_and_its_loss_the_same(trained, capsys, workers: int) -> None:
    rows = rows_of(capsys, "data/val", "--topk", 3, "-b", 5, "-j", workers)
    assert len(rows) == 3 * 12
    assert [row["path"] for row in rows[::3]] == [str(path) for path in sorted(Path("data/val").rglob("*.jpg"))]
    truth = [Path(row["path"]).parent.name for row in rows]
    right = [row["class"] == name for row, name in zip(rows, truth, strict=True) if row["rank"] == "1"]
    share = torch.tensor([float(r["probability"]) for r, name in zip(rows, truth, strict=True) if r["class"] == name])
    epoch = records("run", "epoch")[-1]
    assert 100 * sum(right) / 12 == pytest.approx(epoch["val_acc1"])
    assert float(-share.log().mean()) == pytest.approx(epoch["val_loss"], rel=1e-3)


def test_lines_for_people(trained, capsys) -> None:
    assert predict.main([CHECKPOINT, "data/val/quince/000.jpg", "--topk", "2"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    path, _, found = line.partition(": ")
    assert path == "data/val/quince/000.jpg"
    assert found.count("%") == 2
    assert sum(name in found for name in CLASSES) == 2


def test_unreadable_images_are_named_and_skipped(trained, capsys) -> None:
    Path("some").mkdir()
    (Path("some") / "bad.jpg").write_bytes(b"<html>")
    write_image(Path("some/good.png"))
    assert predict.main([CHECKPOINT, "some/bad.jpg", "some/good.png", "--topk", "1", "-b", "1", "--csv"]) == 5
    output = capsys.readouterr()
    assert [line.split(",")[0] for line in output.out.splitlines()] == ["path", "some/good.png"]
    assert "cannot read some/bad.jpg" in output.err
    assert output.err.splitlines()[-1] == "1 of 2 images could not be read"


def test_more_classes_than_there_are_is_all_of_them(trained, capsys) -> None:
    rows = rows_of(capsys, "data/val/apple/000.jpg", "--topk", 9)
    assert sorted(row["class"] for row in rows) == sorted(CLASSES)
    assert sum(float(row["probability"]) for row in rows) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([CHECKPOINT, "none.jpg"], "no file or folder none.jpg"),
        ([CHECKPOINT, "empty"], "no image below empty"),
        (["none.pt", "data"], "no such file"),
        ([CHECKPOINT], "required"),
        ([CHECKPOINT, "data", "--topk", "0"], "from 1 on"),
    ],
)
def test_mistakes_are_a_sentence(trained, capsys, arguments: list[str], part: str) -> None:
    Path("empty").mkdir()
    assert predict.main(arguments) == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1

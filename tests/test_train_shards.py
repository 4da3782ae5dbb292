"""Training on tar files is training on the folder they were made from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import make_folder, rows

ROOT = Path(__file__).parent.parent
BASE = "-a toy_models:tiny --b 8 --image-size 32 --tensorboard false --print-freq 1 --epochs 2"


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, list[str]]:
    folder = make_folder(tmp_path / "set", train=14, val=5)
    subprocess.run(
        [sys.executable, ROOT / "scripts/make_shards.py", folder, tmp_path / "tars"], check=True, capture_output=True
    )
    tars = ["--train-shards", str(tmp_path / "tars/train-*.tar"), "--val-shards", str(tmp_path / "tars/val-*.tar")]
    return folder, tars


def state(folder: str) -> dict[str, torch.Tensor]:
    return torch.load(f"{folder}/checkpoints/last.pt", weights_only=True)["state_dict"]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_weights_as_from_the_folder(run, sets, workers: int):
    folder, tars = sets
    for name, where in (("files", [folder]), ("tars", tars)):
        assert run(*where, "-j", workers, "--deterministic", "--output-dir", name, base=BASE) == 0
    one, two = state("files"), state("tars")
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert [row["val_acc1"] for row in rows(Path("files"), "epoch")] == [
        row["val_acc1"] for row in rows(Path("tars"), "epoch")
    ]


def test_a_run_on_tars_resumes_in_the_middle_of_an_epoch(run, sets):
    _, tars = sets
    assert run(*tars, "-j", 0, "--deterministic", "--output-dir", "straight", base=BASE) == 0
    assert run(*tars, "-j", 1, "--deterministic", "--output-dir", "halves", "--stop-after-steps", 2, base=BASE) == 0
    assert run("--resume", "halves", base=None) == 0
    one, two = state("straight"), state("halves")
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_a_pattern_without_files_is_a_mistake(run, capsys):
    assert run("--train-shards", "none-*.tar", "--val-shards", "none-*.tar", base=BASE) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert "none-*.tar" in error
    assert "\n" not in error


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--train-shards", "x.tar"], "come together"),
        (["--train-shards", "x.tar", "--val-shards", "y.tar", "--synthetic"], "give one of them"),
        (["--train-shards", "x.tar", "--val-shards", "y.tar", "DIR"], "give one of them"),
    ],
)
def test_pairs_that_exclude_each_other(run, capsys, flags, words: str):
    assert run(*flags, base=BASE) == 2
    assert words in capsys.readouterr().err


def test_tars_are_checked_and_timed_as_folders_are(run, sets, capsys):
    _, tars = sets
    assert run(*tars, "--check-data", "full", "--json", "-j", 0, base=None) == 0
    assert '"train"' in capsys.readouterr().out
    assert run(*tars, "--bench-data", 4, "-j", 0, "-b", 4, "--image-size", 32, base=None) == 0
    assert "images/s" in capsys.readouterr().out


def test_the_same_weights_from_an_object_store(run, sets):
    """By URL through fsspec, as s3 and gs are read; the loader processes have their own connections."""
    folder, tars = sets
    store = pytest.importorskip("fsspec").filesystem("memory")
    for tar in Path(tars[1]).parent.glob("*.tar"):
        store.pipe(f"/bucket/{tar.name}", tar.read_bytes())
    urls = ["--train-shards", "memory://bucket/train-{00000..00000}.tar", "--val-shards", "memory://bucket/val-*.tar"]
    for name, where in (("files", [folder]), ("urls", urls)):
        assert run(*where, "-j", 2, "--deterministic", "--output-dir", name, base=BASE) == 0
    one, two = state("files"), state("urls")
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert run("-e", "--resume", "urls", "-j", 0, base=None) == 0

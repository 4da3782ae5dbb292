"""--check-data as a command: text, JSON, exit codes, no run folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import damage, make_folder

from data.preflight import Looker

ROOT = Path(__file__).parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "set", train=4, val=2, size=24)


def test_the_command_says_all_and_makes_no_run_folder(run, capsys, unique_names: Path) -> None:
    assert run(unique_names, "--check-data", "-j", 0, base="") == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("train: 8 images, 2 classes")
    assert not Path("runs").exists()


@pytest.mark.parametrize("how", ["headers", "full"])
def test_bad_files_are_exit_5(run, capsys, folder: Path, how: str) -> None:
    paths = damage(folder)
    assert run(folder, "--check-data", how, "-j", 1, base="") == 5
    captured = capsys.readouterr()
    for name in ("empty", "page", "noise", "half"):
        assert f"bad file: {paths[name]} (class a): " in captured.out
    assert str(paths["fine"]) not in captured.out
    assert captured.err.startswith("error: 4 files cannot be read (4 in train)")
    assert captured.err.count("\n") == 1
    assert not Path("runs").exists()


def test_findings_are_exit_5(run, capsys, folder: Path) -> None:
    (folder / "train/empty").mkdir()
    assert run(folder, "--check-data", "-j", 0, base="") == 5
    captured = capsys.readouterr()
    assert f"finding: {folder}/train holds no image of 1 of 3 classes (empty)" in captured.out
    assert "1 finding about the folders" in captured.err


@pytest.mark.parametrize("damaged", [False, True])
def test_json_is_one_object_and_nothing_else(run, capsys, folder: Path, damaged: bool) -> None:
    if damaged:
        damage(folder)
    assert run(folder, "--check-data", "full", "--json", "-j", 0, base="") == (5 if damaged else 0)
    content = json.loads(capsys.readouterr().out)
    assert content["ok"] is not damaged
    assert content["check"] == "full"
    assert content["data"] == str(folder)


def test_it_needs_a_folder_and_no_launcher(run, capsys, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("--check-data", base="") == 2
    assert "--check-data needs images: give DIR" in capsys.readouterr().err
    assert run("nowhere", "--check-data", base="") == 2
    assert "no folder " in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(folder, "--check-data", base="") == 2
    assert "start it without torchrun" in capsys.readouterr().err


def test_an_interrupt_is_130(run, capsys, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(Looker, "__getitems__", interrupted)
    assert run(folder, "--check-data", "-j", 0, base="") == 130
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"


def test_it_raises_no_warning_and_needs_no_model(unique_names: Path, tmp_path: Path) -> None:
    flags = [str(unique_names), "--check-data", "full", "-j", "2", "-a", "no_such_module:model"]
    command = [sys.executable, "-W", "error", str(ROOT / "train.py"), *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing wrong found (all pixels decoded)" in done.stdout

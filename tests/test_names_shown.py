"""File names with line breaks, runs of spaces and terminal codes, as people see them: whole, on one line, harmless."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from helpers import ROOT, make_folder

from trainer.one_line import one_line, printable

sys.path.insert(0, str(ROOT / "scripts"))

import prepare_folder  # noqa: E402

NAMES = {"two  spaces.jpg": "two  spaces.jpg", "line\nbreak.jpg": r"line\nbreak.jpg", "\x1b[31m.jpg": r"\x1b[31m.jpg"}


@pytest.fixture(params=list(NAMES))
def bad(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path: Path = make_folder(tmp_path / "set", train=4, val=2, size=24) / "train/a" / request.param
    path.write_text("no image")
    (path.parent / "000.jpg").unlink()  # steps take every file
    return path


def named(line: str, bad: Path) -> bool:
    return f"train/a/{NAMES[bad.name]}" in line


@pytest.mark.parametrize(("text", "wanted"), [("a\n  b\r\nc ", "a b c"), ("a  b", "a  b"), ("\x1b[2J\t", r"\x1b[2J")])
def test_one_line(text: str, wanted: str) -> None:
    assert one_line(text) == wanted


def test_printable_keeps_letters_of_all_scripts() -> None:
    assert printable("é 漢字 a  b") == "é 漢字 a  b"
    assert printable("\udcff\x85") == r"\udcff\x85"


def test_the_last_line_of_a_run_that_fails(run, bad: Path, capfd):
    model = "-a", "toy_models:tiny", "-b", 4, "-j", 0
    assert run(bad.parents[2], *model, "--image-size", 16, "--epochs", 1, base="") == 5
    last = capfd.readouterr().err.rstrip("\n").split("\n")[-1]
    assert last.startswith("error: cannot read ")
    assert named(last, bad)


def test_the_report_of_check_data(run, bad: Path, capfd):
    assert run(bad.parents[2], "--check-data", "-j", 0, base="") == 5
    (line,) = (line for line in capfd.readouterr().out.split("\n") if line.startswith("bad file: "))
    assert named(line, bad)
    assert line.endswith("GIF")
    assert run(bad.parents[2], "--check-data", "-j", 0, "--json", base="") == 5
    assert json.loads(capfd.readouterr().out)["bad_files"][0]["name"] == str(bad)


def test_what_prepare_folder_says(bad: Path, tmp_path: Path, capfd) -> None:
    assert prepare_folder.main([str(bad.parents[2]), str(tmp_path / "dst"), "--workers", "1"]) == 5
    (line,) = (line for line in capfd.readouterr().err.split("\n") if line.startswith("bad: "))
    assert named(line, bad)

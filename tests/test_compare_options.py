"""The command line of compare.py: mistakes are one sentence, and nothing given is ignored."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from comparisons import ROOT, fake_run

import compare  # isort: skip


def test_a_mistake_in_an_arms_flags_is_one_sentence(start, capsys):
    for argv, part in [
        (["--arm", "a: --nonsense", "--arm", "b:"], "arm a: unknown flag --nonsense"),
        (["--arm", "a:"], "2 to 8 arms"),
        (["--arm", "a:", "--arm", "a: --compile"], "two arms are called 'a'"),
        (["--arm", "no colon", "--arm", "b:"], "NAME: flags"),
        (["--arm", "a/b:", "--arm", "b:"], "name is made of"),
        (["--config", "nonsense"], "configs/ab/ holds"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--nonsense"], "--nonsense"),
        (["--from", "nothing.json"], "nothing.json"),
        (["--", "--output-dir", "x"], "--output-dir is set by the comparison"),
    ]:
        _refused(argv, part, start, capsys)


def test_help_needs_no_torch():
    code = "import sys; sys.argv = ['compare.py', '--help']; import runpy\ntry: runpy.run_path('scripts/compare.py', run_name='__main__')\nexcept SystemExit as end: assert end.code == 0\nassert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--arm" in done.stdout


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--", "--help"], "--help after -- is train.py's"),
        (["--", "-h"], "-h after -- is train.py's"),
        (["--arm", "a: --help", "--arm", "b:"], "--help after -- is train.py's"),
        (["--rounds", "-1"], "--rounds must be at least 1, got -1"),
        (["--seconds-per-run", "0"], "--seconds-per-run must be a number above 0, got 0"),
        (["--seconds-per-run", "-1"], "--seconds-per-run must be a number above 0, got -1"),
        (["--seconds-per-run", "nan"], "--seconds-per-run must be a number above 0, got nan"),
        (["--max-minutes", "nan"], "--max-minutes must be a number above 0, got nan"),
        (["--max-minutes", "inf"], "--max-minutes must be a number above 0, got inf"),
        (["--max-minutes", "0"], "--max-minutes must be a number above 0, got 0"),
    ],
)
def test_numbers_that_mean_nothing_and_the_help_of_another(argv, part, start, capsys):
    _refused(argv, part, start, capsys)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("arms:\n  a: --nonsense\n  b:", "arm a: unknown flag --nonsense"),
        ("rounds: three", "--rounds must be a whole number, got 'three'"),
        ("steps: 2.5", "--steps must be a whole number, got 2.5"),
        ("rounds: true", "--rounds must be a whole number, got True"),
        ("max_minutes: .nan", "--max-minutes must be a number above 0, got nan"),
        ("max_minutes: long", "--max-minutes must be a number above 0, got 'long'"),
    ],
)
def test_what_a_file_says_is_checked_too(text, part, start, capsys):
    Path("named.yaml").write_text(f"flags: -a resnet18\n{text}\n")
    _refused(["--config", "named.yaml"], part, start, capsys)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--resume", "out", "--steps", "9"], "--resume goes on as it was asked: drop --steps"),
        (["--resume", "out", "--arm", "x: --compile", "--arm", "y:"], "drop --arm"),
        (["--resume", "out", "--config", "cpu_quick", "--in-process"], "drop --config, --in-process"),
        (["--resume", "out", "--seconds-per-run", "0"], "drop --seconds-per-run"),
        (["--resume", "out", "--mode", "train"], "drop --mode"),
        (["--resume", "out", "--output-dir", "x"], "drop --output-dir"),
        (["--resume", "out", "--", "--lr", "3"], "drop -- and the flags after it"),
        (["--resume", "out", "--from", "out/comparison.json"], "drop --from"),
        (["--from", "out/comparison.json", "--rounds", "1"], "--from runs nothing: drop --rounds"),
        (["--from", "out/comparison.json", "--", "--lr", "3"], "drop -- and the flags after it"),
        (["--resume", "out", "--rounds", "-1"], "--rounds must be at least 1, got -1"),
        (["--resume", "out", "--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["--resume", "out", "--max-minutes", "nan"], "--max-minutes must be a number above 0"),
        (["--resume", "out", "--rounds", "2"], "3 rounds were measured or begun already, so --rounds 2 is too few"),
    ],
)
def test_nothing_given_is_ignored(argv, part, start, capsys):
    settings = {"rounds": 3, "nproc_per_node": 1, "max_minutes": 30.0}
    runs = [fake_run("a", index) for index in range(3)] + [fake_run("b", index) for index in range(2)]
    arms = [{"name": name, "flags": [], "named": []} for name in "ab"]
    record = {"arms": arms, "runs": runs, "settings": settings, "common": [], "probes": {}, "state": "interrupted"}
    Path("out").mkdir()
    path = Path("out/comparison.json")
    path.write_text(json.dumps(record))
    _refused(argv, part, start, capsys)
    assert json.loads(path.read_text()) == record


def _refused(argv: list[str], part: str, start: Any, capsys: Any) -> None:
    assert compare.main(argv, start) == 2
    error = capsys.readouterr().err
    assert part in error
    assert len(error.splitlines()) == 1
    assert start.calls == []

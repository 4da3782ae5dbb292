"""The command line of compare.py: mistakes are one sentence, and nothing given is ignored."""

from __future__ import annotations

import subprocess
import sys

from comparisons import ROOT

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
        assert compare.main(argv, start) == 2
        error = capsys.readouterr().err
        assert part in error
        assert len(error.splitlines()) == 1
    assert start.calls == []


def test_help_needs_no_torch():
    code = "import sys; sys.argv = ['compare.py', '--help']; import runpy\ntry: runpy.run_path('scripts/compare.py', run_name='__main__')\nexcept SystemExit as end: assert end.code == 0\nassert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--arm" in done.stdout

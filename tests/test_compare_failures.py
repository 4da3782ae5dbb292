"""compare.py after a run that failed or was stopped: what was measured is kept, reported and gone on from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from comparisons import QUICK, ROOT, TINY, content

import compare  # isort: skip


def test_a_failed_run_shows_its_last_lines_and_a_resume_goes_on(start, capsys, monkeypatch):
    real, failing = start, {"on": True}

    def flaky(flags: Sequence[str], log: Path) -> int:
        if failing["on"] and "channels_last/round-2" in flags[-1]:
            log.write_text("some lines\nRuntimeError: this arm is broken\n")
            return 1
        return real(flags, log)

    assert compare.main([*QUICK, "--", *TINY], flaky) == 1
    out = capsys.readouterr().out
    assert "RuntimeError: this arm is broken" in out
    assert content()["state"] == "failed"
    assert "this arm is broken" in Path("out/report.html").read_text()
    failing["on"], done = False, len(start.calls)
    assert compare.main(["--resume", "out"], flaky) == 0
    assert len(start.calls) - done == 2  # what had ended is not run again
    assert (content()["state"], len(content()["runs"])) == ("done", 4)
    assert "failure" not in content()


def test_an_interrupted_run_is_130_and_reported(start, capsys):
    def interrupted(flags: Sequence[str], log: Path) -> int:
        return 130 if "round-2" in flags[-1] else start(flags, log)

    assert compare.main([*QUICK, "--", *TINY], interrupted) == 130
    assert "--resume out" in capsys.readouterr().err
    assert content()["state"] == "interrupted"
    assert content()["verdicts"][0]["kind"] == "unstable"  # one round has no interval
    assert Path("out/report.html").exists()


@pytest.mark.slow
def test_ctrl_c_stops_the_run_reports_and_resumes(tmp_path):
    command = [sys.executable, str(ROOT / "scripts/compare.py")]
    flags = [*TINY, "-a", "toy_models:sleepy"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    child = subprocess.Popen([*command, *QUICK, "--", *flags], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    path = tmp_path / "out" / "comparison.json"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (path.exists() and json.loads(path.read_text())["runs"]):
        time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == 130
    assert json.loads(path.read_text())["state"] == "interrupted"
    assert (tmp_path / "out" / "report.html").exists()

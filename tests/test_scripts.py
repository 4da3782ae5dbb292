"""The shell scripts: they parse, answer --help, and call what they say, shown with a stand-in for python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ["scripts/test.sh", "scripts/quickstart.sh"]

# Stands where VENV/bin/python would: logs each call; runs code from stdin.
STAND_IN = """#!/usr/bin/env bash
printf '%s|' "$@" >> "$CALLS"; echo >> "$CALLS"
if [[ "${{1:-}} ${{2:-}}" == "-m ${{FAILS:-none}}" ]]; then exit 7; fi
case "$1" in
    -) exec {python} "$@" ;;
    scripts/compare.py) exit ${{COMPARED:-0}} ;;
esac
"""


class StandIn:
    """A copy of the scripts beside a virtual environment whose python only logs."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.elsewhere = folder / "elsewhere"
        self.log = folder / "calls"
        python = self.elsewhere / "env" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(STAND_IN.format(python=sys.executable))
        python.chmod(0o755)
        (self.root / "scripts").mkdir(parents=True)
        for script in SCRIPTS:
            (self.root / script).write_text((ROOT / script).read_text())

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run it from another folder, with VENV relative to that folder."""
        env = {**os.environ, "VENV": "env", "CALLS": str(self.log), **variables}
        command = ["bash", str(self.root / script), *arguments]
        return subprocess.run(command, cwd=self.elsewhere, env=env, capture_output=True, text=True, timeout=60)

    def calls(self, first: str) -> list[list[str]]:
        calls = [line.rstrip("\n").split("|")[:-1] for line in self.log.read_text().splitlines()]
        return [call for call in calls if " ".join(call).startswith(first)]


@pytest.fixture
def stand_in(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path)


@pytest.mark.parametrize("script", [*SCRIPTS, ".ci/run"])
def test_bash_can_parse_it(script: str) -> None:
    done = subprocess.run(["bash", "-n", str(ROOT / script)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_shows_usage_and_does_nothing_else(script: str, stand_in: StandIn) -> None:
    done = stand_in.run(script, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: bash {script}")
    assert not stand_in.log.exists()


def test_ci_run_can_be_executed() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [([], []), (["-k", "a b"], ["-k", "a b"]), (["--slow"], ["-m", ""]), (["--slow", "-x"], ["-m", "", "-x"])],
)
def test_test_sh_runs_every_check(stand_in: StandIn, arguments: list[str], expected: list[str]) -> None:
    done = stand_in.run("scripts/test.sh", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert stand_in.calls("-m pip install")[0][-2:] == ["-r", "requirements-dev.txt"]
    checks = [call[1:3] for call in stand_in.calls("-m ") if call[1] in ("ruff", "mypy")]
    assert checks == [["ruff", "check"], ["ruff", "format"], ["mypy"]]
    assert stand_in.calls("-m ruff format") == [["-m", "ruff", "format", "--check"]]
    (pytest_call,) = stand_in.calls("-m pytest")
    workers = pytest_call.pop(5)
    assert 1 <= int(workers) <= 4
    assert pytest_call == ["-m", "pytest", "-q", "--durations=15", "-n", "--dist", "loadfile", *expected]


def test_test_sh_stops_at_the_first_failure(stand_in: StandIn) -> None:
    assert stand_in.run("scripts/test.sh", FAILS="mypy").returncode == 7
    assert stand_in.calls("-m mypy")
    assert not stand_in.calls("-m pytest")


def test_quickstart_ends_with_the_comparison_and_where_its_report_is(stand_in: StandIn) -> None:
    done = stand_in.run("scripts/quickstart.sh", "-a", "resnet50")
    assert (done.returncode, done.stderr) == (0, "")
    assert stand_in.calls("-m pip install")[0][-2:] == ["-r", "requirements.txt"]
    ((script, *options),) = stand_in.calls("scripts/compare.py")
    runs = options[options.index("--output-dir") + 1]
    assert options == ["--config", "cpu_quick", "--output-dir", runs, "--", "-a", "resnet50"]
    assert Path(runs).parent == stand_in.root / "runs"
    assert f"{runs}/report.html" in done.stdout
    assert f"{stand_in.elsewhere}/env/bin/tensorboard --logdir {runs}" in done.stdout


def test_quickstart_ends_with_the_code_of_the_comparison(stand_in: StandIn) -> None:
    assert stand_in.run("scripts/quickstart.sh", COMPARED="3").returncode == 3

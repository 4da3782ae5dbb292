"""compare.py after a run that failed or was stopped: what was measured is kept, reported and gone on from."""

from __future__ import annotations

import html
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


def test_sigterm_is_an_interrupt_with_its_own_code(start, capsys):
    def terminated(flags: Sequence[str], log: Path) -> int:
        if "round-2" in flags[-1]:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(20)
        return start(flags, log)

    before = signal.getsignal(signal.SIGTERM)
    assert compare.main([*QUICK, "--no-plots", "--", *TINY], terminated) == 128 + signal.SIGTERM
    assert "--resume out" in capsys.readouterr().err
    assert content()["state"] == "interrupted"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_round_that_was_begun_is_measured_again(start, capsys):
    assert compare.main([*QUICK, "--no-plots", "--", *TINY], start) == 0
    record = content()
    dropped = record["runs"].pop()
    Path("out/comparison.json").write_text(json.dumps(record))
    done = len(start.calls)
    assert compare.main(["--resume", "out", "--no-plots"], start) == 0
    assert "measured again" in capsys.readouterr().out
    assert len(start.calls) - done == 2
    assert {(run["arm"], run["round"]) for run in content()["runs"][-2:]} == {
        ("contiguous", dropped["round"]), ("channels_last", dropped["round"])
    }  # fmt: skip


def test_rounds_of_two_machines_make_no_comparison(start, capsys):
    assert compare.main([*QUICK, "--no-plots", "--", *TINY], start) == 0
    record = content()
    for run in record["runs"]:
        run["environment"]["cpu"] = "another one"
    Path("out/comparison.json").write_text(json.dumps(record))
    assert compare.main(["--resume", "out", "--rounds", "3", "--no-plots"], start) == 1
    assert "was measured with cpu another one, this machine has" in capsys.readouterr().out
    assert len(content()["runs"]) == 4


@pytest.mark.slow
def test_ctrl_c_stops_the_run_reports_and_resumes(tmp_path):
    command = [sys.executable, str(ROOT / "scripts/compare.py")]
    flags = [*TINY, "-a", "toy_models:sleepy"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    child = subprocess.Popen([*command, *QUICK, "--", *flags], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    path = tmp_path / "out" / "comparison.json"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (path.exists() and len(json.loads(path.read_text())["runs"]) > 1):
        time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == 130
    stopped = json.loads(path.read_text())
    assert stopped["state"] == "interrupted"
    assert 2 <= len(stopped["runs"]) < 4
    assert (tmp_path / "out" / "report.html").exists()
    again = [*command, "--resume", "out", "--no-plots"]
    done = subprocess.run(again, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    resumed = json.loads(path.read_text())
    assert (resumed["state"], len(resumed["runs"])) == ("done", 4)
    assert resumed["runs"][:2] == stopped["runs"][:2]  # a whole round is measured once


def unreadable(folder: Path) -> None:
    (folder / "step_times.jsonl").write_text("{ half a li")


def without_keys(folder: Path) -> None:
    (folder / "step_times.jsonl").write_text('{"losses": []}\n')


def other_settings(folder: Path) -> None:
    path = folder / "resolved.yaml"
    path.write_text(path.read_text().replace("momentum: 0.9", "momentum: 0.8"))


def disk_full(folder: Path) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (unreadable, "holds no readable step times"),
        (without_keys, "holds no readable step times: KeyError('skipped_steps')"),
        (other_settings, "also differ in --momentum (0.9 and 0.8)"),
        (disk_full, "No space left on device"),
    ],
)
def test_whatever_goes_wrong_after_the_first_round_is_reported_and_gone_on_from(damage, part, start, capsys):
    on = {"damage": True}

    def damaged(flags: Sequence[str], log: Path) -> int:
        code = start(flags, log)
        if on["damage"] and "channels_last/round-2" in flags[-1]:
            log.write_text("the last line of this arm\n")
            damage(Path(flags[-1]))
        return code

    assert compare.main([*QUICK, "--no-plots", "--", *TINY], damaged) == 1
    shown = capsys.readouterr()
    assert "arm channels_last ended with exit code 1" in shown.out
    assert part in shown.out
    assert "the last line of this arm" in shown.out
    assert shown.out.splitlines()[-1].startswith("verdict: ")
    record = content()
    assert (record["state"], len(record["runs"])) == ("failed", 2)
    assert part in record["failure"]["last_lines"][-1]
    assert part in html.unescape(Path("out/report.html").read_text())
    assert part in Path("out/report.md").read_text()
    on["damage"] = False
    assert compare.main(["--resume", "out", "--no-plots"], damaged) == 0
    assert (content()["state"], len(content()["runs"])) == ("done", 4)


def test_a_probe_that_left_nothing_is_a_failure_too(start, capsys):
    def empty(flags: Sequence[str], log: Path) -> int:
        log.write_text("the last line of this arm\n")
        return 0

    assert compare.main([*QUICK, "--no-plots", "--", *TINY], empty) == 1
    assert "the last line of this arm" in capsys.readouterr().out
    assert content()["state"] == "failed"
    assert "Nothing to judge yet" in Path("out/report.html").read_text()

"""A restart by torchrun, and the same command typed again by a person, of a run that is over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import SMALL, torchrun

WORKER = Path(__file__).parent / "late_kill_worker.py"
WHERE = pytest.mark.parametrize("where", [["--output-dir", "run"], []], ids=["--output-dir", "runs/"])


def folders() -> list[Path]:
    return [path.parent for path in Path().rglob("status.json")]


def edit_status(**values: object) -> None:
    (path,) = Path().rglob("status.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@WHERE
@pytest.mark.parametrize("resume", [["--resume", "auto"], []], ids=["auto", "without --resume"])
def test_a_restart_of_a_run_that_is_done_ends_at_once_and_well(run, capsys, monkeypatch, where, resume):
    """A worker was killed after the run's end and before its own."""
    assert run(*resume, *where) == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (folder,) = folders()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert run(*resume, *where) == 0
    output = capsys.readouterr()
    assert output.err == f"done: not restarted, since {folder} is done\n"
    assert output.out == ""
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert len(folders()) == 1


@WHERE
def test_a_restart_of_an_evaluation_that_is_done_too(run, capsys, monkeypatch, where):
    assert run("-e", *where) == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert run("-e", *where) == 0
    assert "not restarted" in capsys.readouterr().err
    assert len(folders()) == 1


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("failed", 3)])
def test_another_launcher_of_the_same_number_is_not_taken_for_ours(run, monkeypatch, state, code):
    """In containers every launcher is process 1, and runs/ outlives them."""
    assert run("--resume", "auto") == 0
    (folder,) = folders()
    launcher = json.loads((folder / "status.json").read_text())["launcher"]
    edit_status(state=state, exit_code=code, launcher=f"{launcher.split('.')[0]}.1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert run("--resume", "auto", "--epochs", 2, "--stop-after-epochs", 1) == 0
    assert len(folders()) == 2


def test_typed_again_a_finished_command_says_so(run, capsys):
    """By a person or a queue, after its end: without --output-dir a new run, with it there is nothing left to do."""
    assert run("--resume", "auto") == 0
    (folder,) = folders()
    capsys.readouterr()
    assert run("--resume", "auto") == 0
    assert f"{folder} asked for the same and is done" in capsys.readouterr().out
    for _ in range(2):
        assert run("--resume", "auto", "--output-dir", "run") == 0
    assert "nothing left to do" in capsys.readouterr().out
    assert json.loads(Path("run/status.json").read_text())["state"] == "done"
    assert len(folders()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_killed_after_the_end_does_not_train_anew(tmp_path, rank):
    flags = [*SMALL, "-a", "toy_models:tiny", "--b", 4, "--synthetic-size", 16, "--resume", "auto"]
    done = torchrun(tmp_path, 2, WORKER, *flags, options=["--max-restarts", "1"], env={"KILLED_RANK": str(rank)})
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("done: not restarted") == 1
    assert len(list((tmp_path / "runs").iterdir())) == 1

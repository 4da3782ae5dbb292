"""Which folder a resumed run goes on in, and which it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import load, rows


def test_another_output_dir_is_a_new_run_and_leaves_the_old_one(run):
    assert run("--output-dir", "old", "--stop-after-epochs", 1, "--epochs", 2) == 0
    before = {path: path.read_bytes() for path in Path("old").rglob("*") if path.is_file()}
    assert run("--resume", "old", "--output-dir", "new", base="") == 0
    assert load("new")["epoch"] == 2
    assert {path: path.read_bytes() for path in Path("old").rglob("*") if path.is_file()} == before


def test_an_existing_run_is_never_written_into(run, capsys):
    assert run("--output-dir", "run") == 0
    before = Path("run/metrics.jsonl").read_bytes()
    assert run("--output-dir", "run") == 2
    assert "--resume run" in capsys.readouterr().err
    assert Path("run/metrics.jsonl").read_bytes() == before


def test_a_locked_run_is_refused_by_path_and_passed_over_by_auto(run, capsys):
    import fcntl

    assert run("--epochs", 2, "--stop-after-epochs", 1) == 0
    (folder,) = Path("runs").iterdir()
    with open(folder / ".lock") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert run("--resume", folder, base="") == 2
        assert "in use" in capsys.readouterr().err
        assert run("--epochs", 2, "--resume", "auto") == 0
        assert "starting from scratch" in capsys.readouterr().out
    assert len(list(Path("runs").iterdir())) == 2


def test_auto_takes_the_newest_run_that_is_not_done_and_asked_for_the_same(run, capsys):
    """R85; the same command typed again goes on in the same folder."""
    assert run("--epochs", 2, "--resume", "auto") == 0
    assert "starting from scratch" in capsys.readouterr().out
    assert run("--epochs", 3, "--resume", "auto", "--stop-after-epochs", 1) == 0
    assert "starting from scratch" in capsys.readouterr().out
    assert run("--epochs", 3, "--resume", "auto", "-p", 2, "-j", 1) == 0
    assert "going on with runs" in capsys.readouterr().out
    assert run("--epochs", 3, "--resume", "auto") == 0
    assert "starting from scratch" in capsys.readouterr().out, "a run that is done must not be taken"
    assert len(list(Path("runs").iterdir())) == 3


def test_auto_with_an_output_dir(run, capsys):
    flags = ["--epochs", 2, "--output-dir", "run", "--resume", "auto"]
    assert run(*flags, "--stop-after-epochs", 1) == 0
    assert "no checkpoint in run" in capsys.readouterr().out
    assert run(*flags) == 0
    assert load("run")["epoch"] == 2
    assert [row["step"] for row in rows("run")] == list(range(1, 9))


@pytest.mark.parametrize("flags", [["--resume", "run"], ["--resume", "auto", "--output-dir", "run"]])
def test_a_run_whose_config_is_lost_goes_on_in_its_folder(run, flags):
    assert run("--output-dir", "run", "--stop-after-epochs", 1, "--epochs", 2) == 0
    Path("run/config.yaml").unlink()
    assert run("--epochs", 2, *flags) == 0
    assert load("run")["epoch"] == 2
    assert Path("run/config.yaml").exists()


@pytest.mark.parametrize("lost", ["damaged", "gone", "a folder"])
def test_the_newest_whole_file_of_a_given_folder_is_taken(run, capsys, lost):
    flags = ["--output-dir", "run", "--epochs", 2, "--save-every-steps", 2]
    assert run(*flags, "--stop-after-epochs", 1) == 0
    last = Path("run/checkpoints/last.pt")
    last.unlink()
    if lost == "damaged":
        last.write_bytes(b"PK\3\4 half")
    elif lost == "a folder":
        last.mkdir()
    capsys.readouterr()
    assert run("-e", "--resume", "run", base="") == 0
    printed = capsys.readouterr().out
    assert "loading checkpoint 'run/checkpoints/step_00000004.pt'" in printed
    assert ("skipping run/checkpoints/last.pt: " in printed) == (lost != "gone")


def test_a_folder_without_a_whole_file_is_a_mistake(run, capsys):
    Path("run/checkpoints").mkdir(parents=True)
    Path("run/checkpoints/last.pt").write_bytes(b"")
    assert run("--resume", "run", base="") == 2
    assert capsys.readouterr().err.startswith("error: --resume run/checkpoints/last.pt cannot be read: ")


def test_a_run_that_another_process_has_begun_is_in_use(run, capsys):
    import fcntl

    assert run("--output-dir", "run") == 0
    with open("run/.lock") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert run("--output-dir", "run") == 2
    assert "run is in use by a running process" in capsys.readouterr().err


def test_evaluation_has_a_folder_of_its_own(run, capsys):
    assert run("--output-dir", "run", "--epochs", 2) == 0
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    best = load("run", "best.pt")["best_acc1"]
    capsys.readouterr()
    assert run("-e", "--resume", "run/checkpoints/best.pt", "--output-dir", "eval", base="") == 0
    assert f"Prec@1 {best:.3f}" in capsys.readouterr().out
    assert run("-e", "--weights", "run/checkpoints/best.pt", "--output-dir", "eval2") == 0
    assert f"Prec@1 {best:.3f}" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    assert run("-e", "--resume", "run", "--output-dir", "run", base="") == 2


@pytest.mark.parametrize("output_dir", [(), ("--output-dir", "run")])
def test_a_restart_of_a_run_that_failed_for_good_ends_with_the_same_code(run, capsys, monkeypatch, output_dir):
    flags = ["-a", "toy_models:nan_third", "--resume", "auto", *output_dir]
    assert run(*flags) == 3
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    capsys.readouterr()
    assert run(*flags) == 3
    error = capsys.readouterr().err
    assert "not restarted" in error
    assert error.count("\n") == 1
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT")
    assert run(*flags) == 3, "typed again by a person, the command tries again"
    assert "non-finite" in capsys.readouterr().err


def test_evaluation_never_scores_random_weights_unasked(run, capsys):
    assert run("-e", "--resume", "auto") == 2
    assert "no run below runs/" in capsys.readouterr().err
    assert run() == 0
    assert run("-e", "--resume", "auto") == 0, "a run that is done is what one validates"
    assert "validating runs" in capsys.readouterr().out
    (one, _) = sorted(Path("runs").iterdir())
    weights = one / "checkpoints/last.pt"
    base = "-a toy_models:tiny --b 8 --synthetic-size 32 --image-size 32 --tensorboard false"
    assert run("-e", "--weights", weights, base=base) == 0, "the class count is the file's"
    capsys.readouterr()
    assert run("-e", "--weights", weights, "--num-classes", 7, base=base) == 2
    assert "--num-classes 4" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["-a", "toy_models:dropping"], ["-e"]], ids=str)
def test_a_run_without_a_checkpoint_is_not_taken_over(run, flags):
    assert run("--output-dir", "run") == 0
    for path in Path("run/checkpoints").iterdir():
        path.unlink()
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    assert run("--resume", "auto", "--output-dir", "run", *flags) == 2
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before
    assert run("--resume", "auto", "--output-dir", "run") == 0, "the same run begins anew"


def test_a_forked_worker_does_not_keep_a_run_locked(tmp_path):
    """A loader worker outlives its killed parent by seconds."""
    import os

    from trainer import run_folder
    from trainer.run_folder import open_run_folder

    folder = open_run_folder(tmp_path / "run", resuming=False)
    ready, started = os.pipe()
    wait, leave = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(started, b"x")
        os.read(wait, 1)
        os._exit(0)
    os.read(ready, 1)
    run_folder._held.discard(folder._lock)
    os.close(folder._lock)  # as the kernel does when the parent is killed
    try:
        open_run_folder(tmp_path / "run", resuming=True).release()
    finally:
        os.write(leave, b"x")
        os.waitpid(child, 0)

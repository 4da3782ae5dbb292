"""Two ranks: signals, a frozen and a killed one, and another number of ranks in the middle of an epoch."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers import SMALL, launch, make_folder, rows, torchrun

from trainer.distributed import Group, Ranks

FLAGS = ["-a", "toy_models:signalled", "--b", 4, "--synthetic-size", 36, "--val-batch-size", 1, "--epochs", 2]
KEYS = ("epoch", "step", "images_seen", "lr", "train_loss", "val_loss", "val_acc1")


def end_of(run: Path) -> dict:
    return torch.load(run / "checkpoints/last.pt", weights_only=True)


def assert_same_end(one: Path, two: Path) -> None:
    first, second = end_of(one), end_of(two)
    assert first["step"] == second["step"]
    assert all(torch.equal(value, second["state_dict"][key]) for key, value in first["state_dict"].items())
    assert [[row[key] for key in KEYS] for row in rows(one, "epoch")] == [
        [row[key] for key in KEYS] for row in rows(two, "epoch")
    ]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that nothing disturbs."""
    folder = tmp_path_factory.mktemp("straight")
    done = launch(folder, 2, *FLAGS, "--output-dir", "run")
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signals", "code", "steps"),
    [("SIGTERM train 3 1", 143, (3, 4)), ("SIGUSR1 val 2 1", 143, (5, 5)), ("SIGINT train 2 0", 130, (2, 3))],
)
def test_a_signal_to_one_rank_stops_both(tmp_path, straight, signals, code, steps):
    """Within two steps; in validation ranks have different numbers of batches (3 images)."""
    done = launch(tmp_path, 2, *FLAGS, "--output-dir", "run", env={"TOY_SIGNALS": signals})
    assert done.stderr.replace("  ", " ").count(f"exitcode : {code}") == 2, done.stderr[-3000:]
    assert done.stderr.count("stopped: SIG") == 1
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert (status["state"], status["why"].split(":")[0]) == ("preempted", signals.split()[0])
    assert end_of(tmp_path / "run")["step"] in range(steps[0], steps[1] + 1)
    assert end_of(tmp_path / "run")["epoch"] == 0
    assert launch(tmp_path, 2, "--epochs", 2, "--resume", "run").returncode == 0
    assert_same_end(straight, tmp_path / "run")


@pytest.mark.slow
def test_a_sigterm_to_torchrun_saves(tmp_path):
    """It passes the signal on to the process groups of its workers, loader processes and all."""
    make_folder(tmp_path / "data", train=18, val=3)
    flags = ["data", "-a", "toy_models:signalled", "-b", 4, "-j", 1, "--epochs", 2]
    done = launch(tmp_path, 2, *flags, "--output-dir", "straight")
    assert done.returncode == 0, done.stderr[-2000:]
    done = launch(tmp_path, 2, *flags, "--output-dir", "run", env={"TOY_SIGNALS": "^SIGTERM train 2 0"})
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert (status["state"], status["exit_code"], status["why"][:8]) == ("preempted", 143, "SIGTERM:"), done.stderr
    assert end_of(tmp_path / "run")["step"] < 10
    assert launch(tmp_path, 2, "--resume", "run", "--epochs", 2).returncode == 0
    assert_same_end(tmp_path / "straight", tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_restarted_in_the_same_folder(tmp_path, straight, rank):
    """The whole command is the one typed first: no --output-dir."""
    flags = [*FLAGS, "--resume", "auto", "--save-every-steps", 2]
    env = {"TOY_SIGNALS": f"SIGKILL train 8 {rank}"}
    done = launch(tmp_path, 2, *flags, options=["--max-restarts", "1"], env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "going on with runs" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert_same_end(straight, folder)


@pytest.mark.slow
def test_a_frozen_rank_ends_the_run_with_a_sentence(tmp_path):
    """The launcher then gives the frozen process 30 s to end before it kills it."""
    env = {"TOY_SIGNALS": "SIGSTOP train 3 1"}
    done = launch(tmp_path, 2, *FLAGS, "--output-dir", "run", "--dist-timeout", 5, env=env)
    assert done.returncode == 1
    assert done.stderr.count("error: another process of this run gave no answer for 5 s (--dist-timeout)") == 1
    assert "Traceback (most recent call last)" not in done.stderr.split("error: another")[0]
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 1)


@pytest.mark.slow
def test_a_rank_0_that_is_frozen_in_what_it_does_alone_ends_the_run(tmp_path):
    worker = Path(__file__).parent / "frozen_start_worker.py"
    done = torchrun(tmp_path, 2, worker, *SMALL, "-a", "toy_models:tiny", "--b", 4, "--dist-timeout", 3)
    assert done.returncode == 1
    assert done.stderr.count("error: another process of this run gave no answer for 3 s (--dist-timeout)") == 1


def test_a_store_that_went_with_torchrun_is_told_in_a_sentence():
    group = Group(Ranks(), torch.device("cpu"))
    group._store = dist.HashStore()
    gone = "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
    assert "has ended, or the torchrun that started it" in str(group.lost_rank(dist.DistNetworkError(gone)))
    assert group.lost_rank(RuntimeError("shapes do not match")) is None


@pytest.mark.slow
def test_a_rank_that_has_gone_is_named_as_the_cause(tmp_path):
    done = launch(tmp_path, 2, *FLAGS, "--output-dir", "run", env={"TOY_SIGNALS": "SIGKILL train 3 1"})
    assert done.returncode == 1
    assert done.stderr.count("error: another process of this run has ended") == 1
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "failed"


@pytest.mark.slow
def test_rank_0s_clock_saves_on_every_rank(tmp_path):
    done = launch(tmp_path, 2, *FLAGS, "--save-every-minutes", 1e-6, "--keep-checkpoints", 9, "--output-dir", "run")
    assert done.returncode == 0, done.stderr[-2000:]
    steps = {int(path.stem.split("_")[1]) for path in (tmp_path / "run/checkpoints").glob("step_*.pt")}
    assert {2, 4} <= steps, "one boundary after it was due"
    assert 3 not in steps, "what the save of step 2 answers is not asked again"


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_another_number_of_ranks_in_the_middle_of_an_epoch_sees_each_sample_once(tmp_path, first, then):
    worker = Path(__file__).parent / "ids_worker.py"
    flags = ["-a", "toy_models:plain", "--global-batch-size", 8, "--synthetic-size", 36, "--lr", 0.5]
    stopped = torchrun(tmp_path, first, worker, *SMALL, *flags, "--stop-after-steps", 2, "--output-dir", "run")
    assert stopped.returncode == 0, stopped.stderr[-2000:]
    done = torchrun(tmp_path, then, worker, *SMALL, "--resume", "run")
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"batch {8 // then} x {then} processes x 1 a step = 8 images; lr 0.5 x 8/256" in done.stdout
    batches = [json.loads(line) for path in tmp_path.glob("ids_rank*") for line in path.read_text().splitlines()]
    assert sorted(index for keys in batches for _, index in keys) == list(range(36))
    assert [row["images_seen"] for row in rows(tmp_path / "run", "step")] == [8, 16, 24, 32, 36]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_never_comes_is_missed_in_one_sentence(run, capsys, monkeypatch, rank):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    for key, value in {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(key, value)
    assert run("--dist-timeout", 1) == 1
    error = capsys.readouterr().err
    assert f"error: rank {rank} of 2 did not meet the others within 1 s (--dist-timeout)" in error
    assert "Traceback" not in error

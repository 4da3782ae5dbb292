"""How runs end: exit codes, sentences, status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["nowhere"], "no folder"),
        (["--data-dir", "flat"], "train/"),
        (["--arch", "resnet5O"], "did you mean"),
        (["--opt-lvl", "O2"], "--opt-level"),
        (["--opt-level", "O1", "--keep-batchnorm-fp32", "True"], "O1"),
        (["--sync-bn"], "CUDA"),
        (["--device", "cuda"], "CUDA"),
        (["--weights", "none.pt"], "none.pt"),
        (["--synthetic-size", "1"], "too few"),
        (["--config", "none.yaml"], "none.yaml"),
        (["--resume", "none.pt"], "none.pt"),
        (["--epochs", "3", "--lr-warmup-epochs", "2"], "warmup"),
        (["--arch", "toy_models:missing"], "missing"),
        (["--arch", "no_such_module:f"], "no_such_module"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line_and_exit_2(run, capsys, flags, text):
    if torch.cuda.is_available() and ("--sync-bn" in flags or "cuda" in flags):
        pytest.skip("this machine has a GPU, where these flags are no mistake")
    Path("flat").mkdir()
    assert run(*flags) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert text in captured.err
    assert not list(Path().glob("runs/*")), "a mistake leaves no run folder"


def test_a_bug_in_the_users_model_is_exit_1_with_its_traceback(run, capsys):
    assert run("-a", "toy_models:broken", "--output-dir", "run") == 1
    assert "Traceback" in capsys.readouterr().err
    status = json.loads(Path("run/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    assert "this model is broken" in status["why"]


def test_traceback_is_shown_on_request(run, capsys):
    assert run("nowhere", "--traceback", base="") == 2
    assert "Traceback" in capsys.readouterr().err


def test_the_status_of_a_finished_run(run):
    assert run("--output-dir", "run") == 0
    assert json.loads(Path("run/status.json").read_text())["state"] == "done"
    environment = json.loads(Path("run/environment.json").read_text())
    for key in ("torch", "cpu", "cpu_features", "git_revision", "command", "cudnn", "threads"):
        assert key in environment


def test_a_model_without_anything_to_train_is_a_mistake(run, capsys):
    assert run("-a", "toy_models:frozen") == 2
    assert "no parameter to train" in capsys.readouterr().err


def test_enough_memory_is_not_mentioned(run, capsys, monkeypatch):
    from trainer import build

    monkeypatch.setattr(build, "free_memory", lambda: 1 << 34)
    assert run() == 0
    assert "GiB are free" not in capsys.readouterr().out


def test_too_little_memory_is_announced(run, capsys, monkeypatch):
    from trainer import build

    monkeypatch.setattr(build, "free_memory", lambda: 1 << 10)
    assert run() == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "GiB are free" in line]
    assert "lower --batch-size (now 8), --micro-batch or --image-size (now 32)" in line


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_is_one_sentence_and_exit_4(run, capsys, monkeypatch, error):
    from trainer.step import Stepper

    def full(*rest):
        raise error

    monkeypatch.setattr(Stepper, "step", full)
    assert run("--output-dir", "run") == 4
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "--batch-size 8" in message
    assert "--micro-batch 4" in message
    assert json.loads(Path("run/status.json").read_text())["exit_code"] == 4

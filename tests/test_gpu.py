"""What needs a CUDA device; skipped elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import toy_models

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def waiting_is_allowed_again() -> Iterator[None]:
    """``sync_watched`` forbids it for the whole process, and a run that this ends never gets to allow it again."""
    yield
    toy_models.SyncWatched.allow_waiting()


def losses(folder: str) -> list[float]:
    rows = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if row["kind"] == "step"]


@pytest.mark.parametrize("channels_last", ["true", "false"])
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_levels_train_in_both_formats(run, level, channels_last):
    flags = f"--opt-level {level} --channels-last {channels_last} --loss-scale 128 --epochs 2 --output-dir run".split()
    assert run(*flags) == 0
    found = losses("run")
    assert len(set(found)) == len(found) == 8, "the loss must move in every step"


def test_the_default_level_is_o1_with_a_dynamic_scale(run, capsys):
    assert run("--output-dir", "run") == 0
    output = capsys.readouterr().out
    assert "Selected optimization level O1" in output
    assert "CUDNN VERSION: " in output


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_resumed_run_ends_as_the_straight_one(run, level):
    flags = ["--opt-level", level, "--loss-scale", 128, "--deterministic", "--epochs", 2]
    assert run(*flags, "--output-dir", "straight") == 0
    assert run(*flags, "--output-dir", "halves", "--stop-after-epochs", 1) == 0
    assert run("--resume", "halves", base="") == 0
    one, two = (
        torch.load(f"{name}/checkpoints/last.pt", weights_only=True)["state_dict"] for name in ("straight", "halves")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_clipping_works_on_every_level(run, level):
    assert run("--opt-level", level, "--loss-scale", 128, "--clip-grad-norm", 0.5) == 0


@pytest.mark.parametrize(
    "arch", ["mnasnet0_5", "mobilenet_v2", "resnext50_32x4d", "shufflenet_v2_x0_5", "convnext_tiny", "swin_t"]
)
def test_architectures_train_in_channels_last_and_half(run, arch):
    """R35."""
    flags = ["-a", arch, "-b", 4, "--image-size", 64, "--synthetic-size", 8, "--num-classes", 5, "--channels-last"]
    assert run(*flags, "--opt-level", "O2", "--loss-scale", 128, "--lr", 0.001, "--tensorboard", "no", base="") == 0


def test_a_nan_ends_with_exit_3(run):
    assert run("-a", "toy_models:nan_third", "--opt-level", "O2", "--loss-scale", 128, "--output-dir", "run") == 3


@pytest.mark.parametrize(
    "flags",
    [
        "--opt-level O0",
        "--opt-level O1",
        "--opt-level O2",
        "--opt-level O2 --mixup 0.2",
        "--opt-level O2 --model-ema --norm-weight-decay 0",
        "--opt-level O3 --opt adamw --lr 0.001 --model-ema",
        "--opt-level O1 --opt nesterov --ra-reps 2",
    ],
)
def test_ten_steps_without_waiting_for_the_device(run, flags):
    """``sync_watched`` raises at any synchronizing call from its second training pass to its twelfth."""
    assert run("-a", "toy_models:sync_watched", *flags.split(), "--synthetic-size", 128, "--print-freq", 100) == 0

"""Mixup and CutMix in whole runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import toy_models
from helpers import make_folder
from torch import Tensor, nn

# Runs


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_the_first_convolution_gets_the_format(level: str, channels_last: bool, run, tmp_path: Path, monkeypatch):
    """From files through augmentation, mixing and pieces of two images, in training and in validation."""
    seen: list[Tensor] = []

    def watched(num_classes: int) -> nn.Module:
        model = toy_models.Tiny(num_classes)
        model.features[0].register_forward_pre_hook(look)
        return model

    def look(_: nn.Module, inputs: tuple[Tensor]) -> None:
        if inputs[0].device.type == "cpu" and inputs[0].any():  # the start estimates with a meta and a black image
            seen.append(inputs[0])

    monkeypatch.setattr(toy_models, "tiny", watched)
    folder = make_folder(tmp_path / "images", train=5, val=3, size=30)
    flags = (
        f"-a toy_models:tiny --b 8 --micro-batch 3 --image-size 24 --epochs 1 --tensorboard false --opt-level {level} "
        f"--auto-augment ra --random-erase 0.5 --mixup 0.2 --cutmix 1 --label-smoothing 0.1 --workers 1 --channels-last {channels_last} --audit-layout false"
    )
    assert run(base=f"{folder} {flags}") == 0
    assert [len(images) for images in seen] == [3, 3, 2, 2, 6]
    for images in seen:
        assert images.dtype == (torch.float32 if level == "O0" else torch.bfloat16)
        assert images.stride() == ((24 * 24 * 3, 1, 24 * 3, 3) if channels_last else (24 * 24 * 3, 24 * 24, 24, 1))


@pytest.mark.parametrize(
    "flags", ["--mixup 0.2", "--cutmix 1", "--mixup 0.2 --cutmix 1 --grad-accum 2 --label-smoothing 0.1"]
)
def test_runs_on_made_up_images(flags: str, run, tmp_path: Path):
    """33 images: the last batch is one alone, and the step it would make is left out or mixes it with itself."""
    assert run(*flags.split(), "--synthetic-size", 33, "--channels-last", "true") == 0
    (records,) = tmp_path.glob("runs/*/metrics.jsonl")
    losses = [json.loads(line)["loss"] for line in records.read_text().splitlines() if '"loss"' in line]
    assert losses
    assert all(0 < loss < 10 for loss in losses)


def test_evaluation_does_not_mix(run, capsys: pytest.CaptureFixture[str]):
    assert run("--evaluate") == 0
    plain = [line for line in capsys.readouterr().out.splitlines() if line.startswith(" * Prec")]
    assert run("--evaluate", "--mixup", 1, "--cutmix", 1) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith(" * Prec")] == plain != []


def test_a_run_resumed_in_an_epoch_goes_on_with_the_same_losses(run, tmp_path: Path, monkeypatch):
    flags = ("--mixup", 0.2, "--cutmix", 1, "--deterministic")
    losses = {}
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        if name == "parts":
            assert run(*flags, "--stop-after-steps", 2) == 0
        assert run(*flags, *(["--resume", "auto"] if name == "parts" else [])) == 0
        lines = [line for path in Path("runs").glob("*/metrics.jsonl") for line in path.read_text().splitlines()]
        records = [json.loads(line) for line in lines]
        losses[name] = {record["step"]: record["loss"] for record in records if "loss" in record}
    assert losses["whole"] == losses["parts"]
    assert len(losses["whole"]) == 4

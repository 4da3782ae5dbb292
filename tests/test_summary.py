"""--summary: parameters, MACs, activations and expected memory, and no run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import toy_models
from torch import nn
from torchvision import models

from trainer.cli import parse
from trainer.errors import UserError
from trainer.hardware import saved_activations
from trainer.summary import count_macs

ROOT = Path(__file__).parent.parent
PEAK = re.compile(r"^expected peak memory: (\d+\.\d+) GiB", re.MULTILINE)


def test_macs_by_hand():
    convolution = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16 * 16, 10))
    assert count_macs(convolution, 16) == 16 * 16 * 8 * 3 * 9 + 8 * 16 * 16 * 10


def test_macs_of_known_models():
    """torchvision's own tables: 1.81 and 0.30 G."""
    with torch.device("meta"):
        known = [(models.resnet18(), 1.81), (models.mobilenet_v2(), 0.30)]
    for model, billions in known:
        assert (count_macs(model, 224) or 0) / 1e9 == pytest.approx(billions, abs=0.01)


def test_macs_of_a_model_that_reads_values_are_unknown():
    class Reads(nn.Linear):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) if images.sum().item() else images

    assert count_macs(Reads(8, 8), 8) is None


def test_the_summary_is_printed_and_nothing_is_left(run, capsys, tmp_path):
    assert run("--summary", "-b", 16) == 0
    output = capsys.readouterr().out
    count = sum(parameter.numel() for parameter in toy_models.tiny(4).parameters())
    assert f"parameters: {count:,}\n" in output
    assert "MACs of an image's forward pass at 32 pixels: 0.0" in output
    assert "activations kept for the backward pass at batch 16: 0.0" in output
    found = re.search(r"measured: (.*) GiB at batch 8, (.*) GiB before; growth scaled by (.*)\)", output)
    assert found is not None
    peak, before, times = map(float, found.groups())
    assert 1 < times < 2
    assert float(PEAK.findall(output)[0]) == pytest.approx(before + (peak - before) * times, abs=0.03)
    assert not list(tmp_path.iterdir())


def test_a_batch_no_larger_than_the_small_ones_is_measured_itself(run, capsys):
    assert run("--summary", "-b", 100, "--micro-batch", 8, "--opt-level", "O2") == 0
    assert re.search(r"GiB at batch 8, .* GiB before\)", capsys.readouterr().out)


def test_what_ends_the_run_too_is_refused():
    with pytest.raises(UserError, match="--summary and --evaluate each end the run"):
        parse(["--summary", "--evaluate"])


@pytest.mark.parametrize("flags", [[], ["--opt-level", "O2"], ["--model-ema"]])
def test_the_growth_is_scaled_as_what_a_step_keeps_alive(run, capsys, flags):
    """By hand: bytes a parameter (weights, gradients, momentum; float32 ones of O2; an average) and an image, less
    the weights."""
    assert run("--summary", "-b", 200, "--image-size", 96, *flags) == 0
    found = re.search(r"growth scaled by (.*)\)", capsys.readouterr().out)
    assert found is not None
    half = "O2" in flags
    model = toy_models.tiny(4)
    count = sum(parameter.numel() for parameter in model.parameters())
    saved = saved_activations(model, 96)
    assert saved is not None
    image = (saved[0] + 2 * saved[1]) * (0.5 if half else 1.0)
    state = count * ((20 if half else 12) + (4 if "--model-ema" in flags else 0))
    small, large = (state + size * image - 4 * count for size in (8, 200))
    assert float(found[1]) == pytest.approx(large / small, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("heap", ["auto", "default"])
@pytest.mark.parametrize(("arch", "batch"), [("resnet50", 16), ("mobilenet_v2", 32)])
def test_the_expected_memory_is_the_measured_one_within_a_fifth(tmp_path, arch, batch, heap):
    """In processes of their own: a peak cannot be set back."""
    flags = ["-a", arch, "-b", batch, "--image-size", 224, "--synthetic-size", 3 * batch, "--tensorboard", "false"]
    flags += ["--cpu-heap", heap]

    def start(*more: object) -> str:
        command = [sys.executable, ROOT / "train.py", *map(str, flags), *map(str, more)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=True).stdout

    (expected,) = PEAK.findall(start("--summary"))
    start("--output-dir", "run")
    records = map(json.loads, Path(tmp_path, "run/metrics.jsonl").read_text().splitlines())
    (measured,) = [record["peak_memory_gib"] for record in records if record["kind"] == "epoch"]
    assert float(expected) == pytest.approx(measured, rel=0.2)

"""``--freeze-backbone``, a new head on ``--weights``, and ``--stochastic-depth``."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import assert_same_end, load, refused, torchrun
from torch import nn
from torchvision.ops import StochasticDepth

from trainer.freeze import freeze_backbone
from trainer.models import build_model

ROOT = Path(__file__).parent.parent


def trainable(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


@pytest.mark.parametrize(
    ("arch", "head"),
    [
        ("resnet18", ["fc.weight", "fc.bias"]),
        ("squeezenet1_1", ["classifier.1.weight", "classifier.1.bias"]),
        ("mobilenet_v3_small", ["classifier.3.weight", "classifier.3.bias"]),
        ("toy_models:tiny", ["head.weight", "head.bias"]),
    ],
)
def test_the_classifier_alone_trains(arch, head):
    """Also where a convolution has as many outputs as there are classes."""
    for classes in (4, 13, 64):
        model = build_model(arch, classes)
        state = torch.get_rng_state()
        line = freeze_backbone(model, arch, classes)
        assert trainable(model) == head
        assert torch.equal(state, torch.get_rng_state())
        assert line.startswith(f"frozen: all but {head[0]}, {head[1]} (")


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_a_new_head_on_frozen_weights(run, capsys, level):
    assert run("--output-dir", "first") == 0
    before = load("first")["state_dict"]
    flags = ["--weights", "first/checkpoints/last.pt", "--num-classes", 3, "--opt-level", level, "--lr", 1]
    more = ["--freeze-backbone", "--model-ema", 0.5, "--epochs", 2, "--output-dir", "tuned"]
    capsys.readouterr()
    assert run(*flags, *more) == 0
    said = capsys.readouterr().out
    assert "the head is new (head.weight, head.bias)" in said
    assert "frozen: all but head.weight, head.bias (42 of 680 parameters train)" in said
    content = load("tuned")
    after, bound = content["state_dict"], 1e-2 if level == "O2" else 0
    for name, value in before.items():
        if name.startswith("head"):
            assert after[name].shape[0] == 3
        else:
            assert torch.allclose(after[name].double(), value.double(), rtol=bound, atol=0), name
    assert len(content["optimizer"]) == 2, "nothing frozen has momentum"


def test_frozen_runs_resume_exactly(run):
    assert run("--output-dir", "first") == 0
    flags = ["--weights", "first/checkpoints/last.pt", "--freeze-backbone", "-a", "toy_models:dropping", "--lr", 1]
    more = ["--epochs", 2, "--num-classes", 5, "--opt-level", "O2"]
    assert run(*flags, *more, "--output-dir", "straight") == 0
    assert run(*flags, *more, "--output-dir", "halves", "--stop-after-steps", 3) == 0
    assert run("--resume", "halves", base="") == 0
    assert_same_end("straight", "halves")


def test_two_ranks_train_the_head_of_one(run, tmp_path):
    assert run("--output-dir", "first") == 0
    flags = ["--weights", "first/checkpoints/last.pt", "--freeze-backbone", "--num-classes", 3, "--lr", 1]
    more = ["-a", "toy_models:tiny", "--synthetic-size", 64, "--image-size", 32, "--epochs", 1, "-vb", 8]
    assert run(*flags, *more, "--b", 16, "--output-dir", "one") == 0
    done = torchrun(
        tmp_path, 2, ROOT / "train.py", *flags, *more, "--b", 8, "--tensorboard", "false", "--output-dir", "two"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    one, two = load("one")["state_dict"], load("two")["state_dict"]
    for name, value in one.items():
        assert torch.allclose(value, two[name], rtol=1e-4, atol=1e-6), name


def test_freezing_random_weights_is_refused(run, capsys):
    assert run("--freeze-backbone") == 2
    assert "give --weights or --pretrained" in capsys.readouterr().err


@pytest.mark.parametrize("arch", ["efficientnet_b0", "convnext_tiny"])
def test_stochastic_depth_reaches_the_blocks(arch):
    probabilities = [module.p for module in build_model(arch, 3, 0.4).modules() if isinstance(module, StochasticDepth)]
    assert max(probabilities) == pytest.approx(0.4, abs=0.03)
    assert max(probabilities) <= 0.4


@pytest.mark.parametrize("arch", ["resnet18", "toy_models:tiny"])
def test_a_model_without_stochastic_depth_says_so(arch):
    assert "takes no stochastic_depth_prob" in refused(build_model, arch, 3, 0.1)

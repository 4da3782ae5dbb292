"""The recipes below configs/: headers, deltas, settings that resolve, two tiny steps of each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml
from helpers import load, rows

from trainer.cli import parse
from trainer.config import DEFAULTS, TrainConfig
from trainer.distributed import Ranks
from trainer.resolve import resolve_config

ROOT = Path(__file__).resolve().parent.parent
RECIPES = sorted((ROOT / "configs").glob("*.yaml"))
NAMES = {
    "convnext_tiny", "cpu_small", "digits", "efficientnet_b0", "mobilenet_v3_large", "resnet50_16", "resnet50_90",
    "resnet50_v2",
}  # fmt: skip
# What torchvision's published runs were told, in its reference's own flags.
TORCHVISION = {
    "resnet50_v2": "--model resnet50 --lr 0.5 --lr-scheduler cosineannealinglr --lr-warmup-epochs 5 --lr-warmup-decay 0.01 "
    "--auto-augment ta_wide --epochs 600 --random-erase 0.1 --weight-decay 0.00002 --norm-weight-decay 0.0 "
    "--label-smoothing 0.1 --mixup-alpha 0.2 --cutmix-alpha 1.0 --train-crop-size 176 --val-resize-size 232 --ra-reps 4",
    "convnext_tiny": "--model convnext_tiny --opt adamw --lr 1e-3 --lr-scheduler cosineannealinglr --lr-warmup-epochs 5 "
    "--lr-warmup-decay 0.01 --auto-augment ta_wide --epochs 600 --random-erase 0.1 --label-smoothing 0.1 --mixup-alpha 0.2 "
    "--cutmix-alpha 1.0 --weight-decay 0.05 --norm-weight-decay 0.0 --train-crop-size 176 --ra-reps 4",
    "mobilenet_v3_large": "--model mobilenet_v3_large --epochs 600 --opt rmsprop --lr 0.064 --wd 0.00001 --lr-step-size 2 "
    "--lr-gamma 0.973 --auto-augment imagenet --random-erase 0.2",
}


def resolved(path: Path, ranks: int) -> TrainConfig:
    config = parse(["-c", str(path), "/images"]).config
    return resolve_config(config, torch.device("cpu"), Ranks(world_size=ranks), 1000)[0]


def test_all_recipes_are_there() -> None:
    assert {path.stem for path in RECIPES} == NAMES


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_header_says_what_a_recipe_is_for(path: Path) -> None:
    header = [line.removeprefix("#").strip() for line in path.read_text().splitlines() if line.startswith("#")]
    commands = [line for line in header if f"-c configs/{path.name}" in line]
    assert len(commands) == 1
    words = commands[0].split()
    assert parse(words[words.index("train.py") + 1 :]).config.has_files
    for field in ("Hardware:", "Published:", "Lacks:", "Run here:"):
        assert [line for line in header if line.startswith(field)], field
    said = re.search(r"Run here: (yes|no)\b(.*)$", " ".join(header))
    assert said is not None
    assert ("%" in said[2]) == (said[1] == "yes"), "an accuracy as ours only where it was measured"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_holds_what_differs_from_the_defaults(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    given = parse(["-c", str(path)]).given
    assert set(given) == set(content)
    assert [key for key, value in given.items() if value == DEFAULTS[key] and key != "lr"] == []


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_resolves_on_the_processes_it_names(path: Path) -> None:
    found = re.search(r"--nproc-per-node (\d+)", path.read_text())
    ranks = int(found[1]) if found else 1
    config = resolved(path, ranks)
    assert config.epochs is not None
    assert config.val_resize is not None
    if config.global_batch_size:
        assert config.batch_size * ranks == config.global_batch_size


@pytest.mark.parametrize("name", TORCHVISION)
def test_settings_are_those_of_torchvisions_reference(name: str) -> None:
    given = parse(["-c", str(ROOT / f"configs/{name}.yaml")]).config
    for key, value in parse(TORCHVISION[name].split()).given.items():
        if (name, key) != ("convnext_tiny", "val_resize"):
            assert getattr(given, key) == value, key
    assert (given.global_batch_size, given.lr_scaling) == (1024, "none")


def test_the_average_forgets_as_fast_as_torchvisions() -> None:
    """1 - decay there is (1 - 0.99998) x batch x 32 / epochs, once in 32 steps."""
    theirs = (1 - (1 - 0.99998) * 1024 * 32 / 600) ** (1 / 32)
    for name in ("resnet50_v2", "convnext_tiny"):
        assert parse(["-c", str(ROOT / f"configs/{name}.yaml")]).config.model_ema == pytest.approx(theirs, abs=1e-6)


def test_ffcvs_sizes() -> None:
    """160 pixels up to epoch 11, 192 after it."""
    from data.progressive import SizeSchedule

    config = resolved(ROOT / "configs/resnet50_16.yaml", 8)
    assert config.progressive is not None
    sizes = SizeSchedule(config.progressive, config.epochs or 0)
    assert [sizes(epoch) for epoch in range(16)] == [160] * 12 + [192] * 4
    assert (config.image_size, config.val_image_size, config.val_resize) == (192, 256, 293)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_two_tiny_steps(run, path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    size = ["--progressive", "32:0,48:0.5"] if "progressive" in content else ["--image-size", 32]
    small = "-b 4 --synthetic-size 16 --num-classes 4 --val-image-size 32 --val-resize 36 --tensorboard false -p 1 --lr 1e-3"
    assert run("-c", path, *small.split(), *size, "--stop-after-steps", 2, "--output-dir", "run", base="") == 0
    steps = rows("run")
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["loss"] > 0 for row in steps)
    saved = load("run")
    assert saved["arch"] == content.get("arch", "resnet18")
    assert (saved["ema"] is not None) == ("model_ema" in content)

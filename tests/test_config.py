"""TrainConfig: what is in range, which settings exclude each other, and the sentences that say so."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest

from trainer.checks import OPT_LEVELS, flag_of
from trainer.config import (
    DEFAULTS,
    KEYS,
    MATCH_IGNORES,
    NOT_IN_FILE,
    PER_START,
    TrainConfig,
)
from trainer.errors import EXIT_USER, RunError, UserError

OUT_OF_RANGE: dict[str, list[Any]] = {
    "synthetic_size": [0, -1],
    "num_classes": [0],
    "image_size": [0, -224],
    "val_image_size": [0],
    "val_resize": [0],
    "hflip": [-0.1, 1.1, math.nan, math.inf],
    "crop_scale": [(0.0, 1.0), (0.5, 0.4), (0.5, 1.5), (-1.0, 1.0), (math.nan, 1.0), (0.5, math.nan)],
    "mean": [(math.nan, 0.0, 0.0), (0.0, math.inf, 0.0)],
    "std": [(0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, math.nan, 1.0), (1.0, 1.0, math.inf)],
    "batch_size": [0, -1],
    "val_batch_size": [0],
    "workers": [-1],
    "epochs": [0, -1],
    "start_epoch": [-1],
    "steps_per_epoch": [0],
    "lr": [-0.1, math.nan, math.inf],
    "momentum": [-0.9, math.nan],
    "weight_decay": [-1e-4, math.inf],
    "lr_gamma": [-1.0, math.nan],
    "lr_milestones": [(), (0.0,), (-1.0, 5.0), (5.0, 5.0), (8.0, 5.0), (math.nan,), (5.0, math.nan), (5.0, math.inf)],
    "lr_step_size": [0.0, -1.0, math.nan, math.inf],
    "lr_warmup_epochs": [-1.0, math.nan, math.inf],
    "lr_warmup_decay": [-0.1, 1.1, math.nan],
    "grad_accum_steps": [0],
    "clip_grad_norm": [0.0, -1.0, math.nan, math.inf],
    "label_smoothing": [-0.1, 1.1, math.nan],
    "model_ema": [-0.1, 1.1, math.nan],
    "loss_scale": [0.0, -1.0, math.nan, math.inf],
    "stop_after_epochs": [0],
    "stop_after_steps": [0],
    "seed": [-1],
    "print_freq": [0, -1],
    "timing_warmup_steps": [-1],
    "prof": [-1],
    "opt_level": ["O4", "o1", "fp16"],
    "amp_dtype": ["half", "fp16"],
    "device": ["gpu", "cuda:0"],
    "interpolation": ["nearest", "random"],
    "lr_schedule": ["plateau", "exponentiallr", "multisteplr"],
    "lr_scaling": ["sqrt"],
    "dist_timeout": [0.0, -1.0, math.nan, math.inf, 1e300],
}
IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"synthetic": True, "data_dir": "/images"}, "--synthetic"),
    ({"pretrained": True, "weights": "IMAGENET1K_V2"}, "--pretrained"),
    ({"opt_level": "O1", "keep_batchnorm_fp32": True}, "--keep-batchnorm-fp32"),
    ({"opt_level": "O1", "keep_batchnorm_fp32": False}, "--keep-batchnorm-fp32"),
    ({"amp_dtype": "bfloat16", "loss_scale": 128.0}, "--loss-scale"),
    ({"amp_dtype": "bfloat16", "loss_scale": "dynamic"}, "--loss-scale"),
    ({"lr_schedule": "cosine", "lr_milestones": (30.0,)}, "--lr-milestones"),
    ({"lr_schedule": "cosine", "lr_step_size": 30.0}, "--lr-step-size"),
    ({"lr_milestones": (30.0,), "lr_step_size": 30.0}, "--lr-step-size"),
    ({"lr_milestones": (3.0, 6.0), "lr_warmup_epochs": 3.5}, "--lr-warmup-epochs"),
    ({"lr_step_size": 2.0, "lr_warmup_epochs": 3.0}, "--lr-warmup-epochs"),
    ({"epochs": 5, "start_epoch": 5}, "--start-epoch"),
]
POSSIBLE: list[dict[str, Any]] = [
    {"lr": 0.0, "momentum": 0.0, "weight_decay": 0.0, "workers": 0, "seed": 0, "prof": 0, "timing_warmup_steps": 0},
    {"crop_scale": (1.0, 1.0), "hflip": 1.0, "mean": (-1.0, 0.0, 300.0)},
    {"lr_milestones": (0.5, 1.5), "lr_warmup_epochs": 0.5, "epochs": 2},
    {"lr_schedule": "cosine", "lr_warmup_epochs": 3.0},
    {"amp_dtype": "bfloat16", "loss_scale": 1.0},
    {"epochs": 5, "start_epoch": 4},
]


def sentence(**settings: Any) -> str:
    with pytest.raises(UserError) as failed:
        TrainConfig(**settings)
    assert failed.value.exit_code == EXIT_USER == 2
    assert isinstance(failed.value, ValueError)
    message = str(failed.value)
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize("key", OUT_OF_RANGE)
def test_out_of_range_names_the_flag(key: str) -> None:
    for value in OUT_OF_RANGE[key]:
        assert sentence(**{key: value}).startswith(f"{flag_of(key)} ")


@pytest.mark.parametrize(("settings", "flag"), IMPOSSIBLE)
def test_impossible_pair_names_the_flag(settings: dict[str, Any], flag: str) -> None:
    assert flag in sentence(**settings)
    for key, value in settings.items():
        if key != "start_epoch":
            TrainConfig(**{key: value})  # each alone is fine


@pytest.mark.parametrize("key", ["val_labels", "class_map"])
def test_a_file_about_the_folder_needs_the_folder(key: str) -> None:
    assert sentence(**{key: "/file"}).startswith(f"{flag_of(key)} '/file' ")
    TrainConfig(**{key: "/file"}, data_dir="/images")


@pytest.mark.parametrize("settings", POSSIBLE)
def test_limits_are_allowed(settings: dict[str, Any]) -> None:
    config = TrainConfig(**settings)
    assert {key: getattr(config, key) for key in settings} == settings


def test_every_level_with_every_override_is_fine_or_one_sentence() -> None:
    for level, dtype, keep, scale in itertools.product(
        (None, *OPT_LEVELS), ("auto", "float16", "bfloat16"), (None, True, False), (None, 1.0, 128.0, "dynamic")
    ):
        settings: dict[str, Any] = {
            "opt_level": level,
            "amp_dtype": dtype,
            "keep_batchnorm_fp32": keep,
            "loss_scale": scale,
        }
        excluded = (level == "O1" and keep is not None) or (dtype == "bfloat16" and scale in (128.0, "dynamic"))
        if excluded:
            sentence(**settings)
        else:
            TrainConfig(**settings)


def test_a_folder_with_a_line_break_in_its_name_stays_one_line() -> None:
    assert "a\\nb" in sentence(synthetic=True, data_dir="/a\nb")


def test_config_is_frozen_and_replace_checks_again() -> None:
    config = TrainConfig(batch_size=8)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.batch_size = 9  # type: ignore[misc]
    assert config.replace(lr=0.5) == TrainConfig(batch_size=8, lr=0.5)
    with pytest.raises(UserError, match="--batch-size"):
        config.replace(batch_size=0)


def test_keys_and_their_lists_agree() -> None:
    assert tuple(DEFAULTS) == KEYS
    assert vars(TrainConfig()) == DEFAULTS
    for listed in (PER_START, NOT_IN_FILE, MATCH_IGNORES):
        assert set(listed) <= set(KEYS)
    assert "config" not in KEYS
    assert "local_rank" not in KEYS
    assert "data_dir" not in MATCH_IGNORES


def test_other_run_errors_are_no_user_mistakes() -> None:
    assert not issubclass(RunError, ValueError)
    assert RunError("x").on_every_rank is False
    assert UserError("x", on_every_rank=True).on_every_rank is True


def test_skipping_and_synchronized_batch_norm_exclude_each_other() -> None:
    with pytest.raises(UserError, match="drop one of the two"):
        TrainConfig(sync_bn=True, bad_images="skip", data_dir="/images")

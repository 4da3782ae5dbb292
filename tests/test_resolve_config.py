"""What the start of a run chooses: every null and `auto`, afresh and on going on from a checkpoint."""

from __future__ import annotations

import pytest
import torch
from helpers import taken

from trainer import resolve
from trainer.config import KEYS, TrainConfig
from trainer.distributed import Ranks
from trainer.errors import UserError
from trainer.resolve import IMAGENET_MEAN, IMAGENET_STD, resolve_config

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


pytestmark = pytest.mark.usefixtures("eight_cores")


def resolved(device: torch.device = CPU, classes: int | None = None, saved: dict | None = None, **asked) -> TrainConfig:
    return resolve_config(TrainConfig(**asked), device, Ranks(), classes, saved)[0]


def notices(device: torch.device = CPU, **asked) -> str:
    return " ".join(resolve_config(TrainConfig(**asked), device, Ranks(), None)[1])


def refused(device: torch.device = CPU, classes: int | None = None, **asked) -> str:
    with pytest.raises(UserError) as caught:
        resolved(device, classes, **asked)
    assert caught.value.on_every_rank
    return str(caught.value)


def test_no_null_and_no_auto_is_left_but_what_means_off():
    config = resolved()
    off = {"data_dir", "weights", "steps_per_epoch", "lr_step_size", "clip_grad_norm", "keep_batchnorm_fp32"}
    off |= {"output_dir", "resume", "stop_after_epochs", "stop_after_steps", "prof", "micro_batch", "save_every_steps"}
    off |= {
        "auto_augment",
        "max_image_pixels",
        "max_bad_images",
        "val_labels",
        "class_map",
        "train_shards",
        "val_shards",
    }
    off |= {"check_data", "bench_data", "audit_layout", "global_batch_size", "on_save_error"}
    off |= {"model_ema", "progressive", "early_stop", "norm_weight_decay", "bias_weight_decay", "stochastic_depth"}
    assert {key for key in KEYS if getattr(config, key) is None} == off
    # The heap is chosen once the model is there (trainer/build.py).
    assert [key for key in KEYS if getattr(config, key) == "auto"] == ["cpu_heap"]


@pytest.mark.parametrize(
    ("asked", "classes", "expected"),
    [
        ({}, None, (True, 1, 1000)),
        ({"num_classes": 7}, None, (True, 1, 7)),
        ({"data_dir": "/set"}, 3, (False, 90, 3)),
        ({"data_dir": "/set", "epochs": 2, "num_classes": 5}, 3, (False, 2, 5)),
    ],
)
def test_epochs_and_classes(asked: dict, classes: int | None, expected: tuple):
    """R20: the head has as many outputs as train/ has folders."""
    assert taken(resolved(classes=classes, **asked), "synthetic", "epochs", "num_classes") == expected


def test_fewer_outputs_than_folders_are_refused():
    assert refused(classes=3, data_dir="/set", num_classes=2).startswith("--num-classes 2 is fewer than the 3 classes")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, (224, 224, 256)),
        ({"image_size": 32}, (32, 32, 37)),
        ({"image_size": 176, "val_image_size": 224}, (176, 224, 256)),
        ({"image_size": 176, "val_resize": 232}, (176, 176, 232)),
        ({"arch": "inception_v3"}, (299, 299, 342)),
        ({"arch": "inception_v3", "image_size": 128}, (128, 128, 146)),
        ({"arch": "resnet50", "pretrained": True}, (224, 224, 232)),
        ({"arch": "resnet50", "pretrained": True, "image_size": 176}, (176, 176, 201)),
        ({"arch": "resnet50", "pretrained": True, "image_size": 176, "val_image_size": 224}, (176, 224, 232)),
        ({"arch": "efficientnet_b3", "weights": "IMAGENET1K_V1"}, (300, 300, 320)),
    ],
)
def test_image_sizes(asked: dict, expected: tuple):
    assert taken(resolved(**asked), "image_size", "val_image_size", "val_resize") == expected


def test_a_resize_below_the_crop_is_refused():
    assert "--val-resize 200 is smaller than the validation crop of 224" in refused(val_resize=200)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ("bilinear", IMAGENET_MEAN, IMAGENET_STD)),
        ({"arch": "efficientnet_b0", "pretrained": True}, ("bicubic", IMAGENET_MEAN, IMAGENET_STD)),
        ({"arch": "inception_v3", "pretrained": True}, ("bilinear", (0.5,) * 3, (0.5,) * 3)),
        (
            {"arch": "inception_v3", "pretrained": True, "mean": (0.1,) * 3, "interpolation": "bicubic"},
            ("bicubic", (0.1,) * 3, (0.5,) * 3),
        ),
    ],
)
def test_the_presets_of_weights_fill_what_is_not_asked(asked: dict, expected: tuple):
    assert taken(resolved(**asked), "interpolation", "mean", "std") == expected


def test_the_validation_batch_is_the_training_batch_unless_asked():
    assert resolved(batch_size=48).val_batch_size == 48
    assert resolved(batch_size=48, val_batch_size=5).val_batch_size == 5


@pytest.mark.parametrize(
    ("cores", "local", "asked", "expected"),
    [(8, 1, None, 4), (2, 1, None, 2), (8, 4, None, 2), (2, 4, None, 1), (8, 4, 0, 0), (1, 1, 16, 16)],
)
def test_workers(cores: int, local: int, asked: int | None, expected: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resolve, "usable_cores", lambda: cores)
    config, _ = resolve_config(TrainConfig(workers=asked), CPU, Ranks(0, local, 0, local), None)
    assert config.workers == expected


def test_sync_bn_needs_a_gpu():
    assert refused(sync_bn=True).startswith("--sync-bn needs CUDA")
    assert resolved(CUDA, sync_bn=True).sync_bn


def test_more_loader_processes_than_cores_are_told():
    assert "16 loader processes on 8 usable cores" in notices(data_dir="/set", workers=16)
    assert notices(data_dir="/set") == notices(workers=16) == ""


# Precision


@pytest.mark.parametrize(
    ("device", "asked", "expected"),
    [
        (CPU, {}, ("O0", "bfloat16", None, 1.0)),
        (CUDA, {}, ("O1", "float16", None, "dynamic")),
        (CPU, {"opt_level": "O2"}, ("O2", "bfloat16", True, 1.0)),
        (CUDA, {"opt_level": "O2"}, ("O2", "float16", True, "dynamic")),
        (CUDA, {"opt_level": "O3"}, ("O3", "float16", False, 1.0)),
        (CUDA, {"opt_level": "O3", "keep_batchnorm_fp32": True}, ("O3", "float16", True, 1.0)),
        (CUDA, {"opt_level": "O2", "loss_scale": 128.0}, ("O2", "float16", True, 128.0)),
        (CUDA, {"opt_level": "O2", "amp_dtype": "bfloat16"}, ("O2", "bfloat16", True, 1.0)),
        (CPU, {"opt_level": "O1", "amp_dtype": "float16"}, ("O1", "float16", None, "dynamic")),
        (CPU, {"opt_level": "O2", "loss_scale": 128.0}, ("O2", "bfloat16", True, 1.0)),
        (CPU, {"opt_level": "O1", "loss_scale": "dynamic"}, ("O1", "bfloat16", None, 1.0)),
        (CPU, {"opt_level": "O2", "loss_scale": 128.0, "amp_dtype": "float16"}, ("O2", "float16", True, 128.0)),
        (CPU, {"loss_scale": 128.0}, ("O0", "float16", None, 128.0)),
    ],
)
def test_precision(device: torch.device, asked: dict, expected: tuple):
    config = resolved(device, **asked)
    assert taken(config, "opt_level", "amp_dtype", "keep_batchnorm_fp32", "loss_scale") == expected


def test_a_loss_scale_that_bfloat16_does_not_need_is_told():
    assert "128.0 is not used" in notices(opt_level="O2", loss_scale=128.0)
    assert notices(CUDA, opt_level="O2", loss_scale=128.0) == ""
    assert notices(loss_scale=128.0) == ""


def test_impossible_precisions_are_refused():
    assert "--keep-batchnorm-fp32" in refused(CUDA, keep_batchnorm_fp32=True)
    mps = torch.device("mps")
    assert refused(mps, opt_level="O1") == "--device mps runs O0 only, got --opt-level O1"
    assert resolved(mps).opt_level == "O0"
    assert "untested" in notices(mps)


# Schedule


@pytest.mark.parametrize(
    ("asked", "milestones", "warmup"),
    [
        ({"epochs": 90}, (30, 60, 80), 5),
        ({"epochs": 9}, (3, 6, 8), 0.5),
        ({"epochs": 9, "lr_warmup_epochs": 2.0}, (3, 6, 8), 2),
        ({"epochs": 90, "lr_milestones": (2.0, 70.0)}, (2, 70), 2),
        ({"epochs": 90, "lr_step_size": 3.0}, None, 3),
        ({"epochs": 90, "lr_step_size": 30.0}, None, 5),
        ({"epochs": 90, "lr_schedule": "cosine"}, None, 5),
        ({"epochs": 90, "lr_warmup_epochs": 0.0}, (30, 60, 80), 0),
    ],
)
def test_schedule(asked: dict, milestones: tuple | None, warmup: float):
    """R99: both follow --epochs; a warm-up that nobody asked for never passes the first drop."""
    config = resolved(**asked)
    assert config.lr_milestones == (None if milestones is None else pytest.approx(milestones))
    assert config.lr_warmup_epochs == pytest.approx(warmup)


@pytest.mark.parametrize("asked", [{"epochs": 3}, {"epochs": 90, "lr_milestones": (1.0,)}, {"lr_step_size": 1.0}])
def test_an_asked_warmup_past_the_first_drop_is_refused(asked: dict):
    with pytest.raises(UserError, match="--lr-warmup-epochs 2 passes the first drop of the rate at epoch 1"):
        resolved(lr_warmup_epochs=2.0, **asked)


def test_channels_last_in_float32_on_cuda_is_worth_a_note():
    assert "slower than contiguous" in notices(CUDA, opt_level="O0", channels_last=True)
    for device, changes in [
        (CUDA, {"opt_level": "O2", "channels_last": True}),
        (CUDA, {"opt_level": "O0", "channels_last": False}),
        (CPU, {"opt_level": "O0", "channels_last": True}),
    ]:
        assert "slower than contiguous" not in notices(device, **changes)

"""What makes a setting, or a pair of them, impossible. Imports no torch."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from trainer.errors import UserError

if TYPE_CHECKING:
    from trainer.config import TrainConfig

OPT_LEVELS = ("O0", "O1", "O2", "O3")
AMP_DTYPES = ("auto", "float16", "bfloat16")
DEVICES = ("auto", "cpu", "cuda", "mps")
INTERPOLATIONS = ("bilinear", "bicubic")
LR_SCHEDULES = ("step", "cosine")
OPTIMIZERS = ("sgd", "nesterov", "adamw", "rmsprop")
LR_SCALINGS = ("linear", "none")
CPU_HEAPS = ("auto", "retain", "hugepages", "default")
AUTO_AUGMENTS = ("ra", "ta_wide", "imagenet", "augmix")
EXIF_RULES = ("apply", "ignore")
BAD_IMAGE_POLICIES = ("fail", "skip")
SAVE_ERROR_POLICIES = ("continue", "stop")
DATA_CHECKS = ("headers", "full")


def flag_of(key: str) -> str:
    """The canonical flag of a key: ``batch_size`` -> ``--batch-size``."""
    return "--" + key.replace("_", "-")


def check(config: TrainConfig) -> None:
    """Raise ``UserError`` when a value is out of range or two of them exclude each other."""
    _check_ranges(config)
    _check_choices(config)
    _check_pairs(config)
    _check_epochs(config)
    _check_data_flags(config)


_AT_LEAST: dict[str, float] = {
    "synthetic_size": 1, "num_classes": 1, "image_size": 1, "val_image_size": 1, "val_resize": 1, "batch_size": 1,
    "global_batch_size": 1, "val_batch_size": 1, "workers": 0, "epochs": 1, "start_epoch": 0, "steps_per_epoch": 1, "lr": 0, "momentum": 0,
    "weight_decay": 0, "norm_weight_decay": 0, "bias_weight_decay": 0, "lr_gamma": 0, "lr_min": 0, "val_every": 1, "ra_reps": 1, "early_stop": 1, "lr_warmup_epochs": 0, "grad_accum_steps": 1, "micro_batch": 1, "stop_after_epochs": 1,
    "stop_after_steps": 1, "max_image_pixels": 1, "bench_data": 1, "mixup": 0, "cutmix": 0, "seed": 0, "save_every_steps": 1, "save_every_minutes": 0, "keep_checkpoints": 1,
    "print_freq": 1, "timing_warmup_steps": 0, "prof": 0,
}  # fmt: skip
_UP_TO_ONE = ("hflip", "random_erase", "label_smoothing", "lr_warmup_decay", "model_ema", "stochastic_depth")
_A_YEAR = 3.2e7  # seconds
_POSITIVE = ("clip_grad_norm", "lr_step_size", "dist_timeout")
_CHOICES = {
    "opt_level": OPT_LEVELS,
    "amp_dtype": AMP_DTYPES,
    "device": DEVICES,
    "interpolation": INTERPOLATIONS,
    "lr_schedule": LR_SCHEDULES,
    "opt": OPTIMIZERS,
    "lr_scaling": LR_SCALINGS,
    "cpu_heap": CPU_HEAPS,
    "auto_augment": AUTO_AUGMENTS,
    "exif_orientation": EXIF_RULES,
    "bad_images": BAD_IMAGE_POLICIES,
    "check_data": DATA_CHECKS,
    "on_save_error": SAVE_ERROR_POLICIES,
}


def _check_ranges(config: TrainConfig) -> None:
    for key, least in _AT_LEAST.items():
        value = getattr(config, key)
        if value is not None and not least <= value < float("inf"):
            raise UserError(f"{flag_of(key)} must be at least {least:g}, got {value}")
    for key in _UP_TO_ONE:
        value = getattr(config, key)
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"{flag_of(key)} must lie between 0 and 1, got {value}")
    for key in _POSITIVE:
        value = getattr(config, key)
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{flag_of(key)} must be above 0, got {value}")
    if config.dist_timeout > _A_YEAR:
        raise UserError(f"--dist-timeout must be at most {_A_YEAR:g} s, got {config.dist_timeout:g}")
    scale = config.loss_scale
    if isinstance(scale, float) and not 0 < scale < float("inf"):
        raise UserError(f"--loss-scale must be above 0, got {scale:g}")
    low, high = config.crop_scale
    if not 0 < low <= high <= 1:
        raise UserError(f"--crop-scale needs 0 < MIN <= MAX <= 1, got {low:g} {high:g}")
    for key in ("mean", "std", "lr_milestones"):
        if not all(map(math.isfinite, getattr(config, key) or ())):
            raise UserError(f"{flag_of(key)} must be finite, got {getattr(config, key)}")
    if config.std is not None and min(config.std) <= 0:
        raise UserError(f"--std must be above 0, got {config.std}")


def _check_choices(config: TrainConfig) -> None:
    if config.channels_last not in (True, False, "auto"):
        raise UserError(f"--channels-last needs true, false or 'auto', got {config.channels_last!r}")
    for key, choices in _CHOICES.items():
        value = getattr(config, key)
        if value is not None and value not in choices:
            raise UserError(f"{flag_of(key)} must be one of {', '.join(choices)}; got {value!r}")


def _check_pairs(config: TrainConfig) -> None:
    if config.synthetic and config.data_dir:
        raise UserError(f"--synthetic makes its own images, but a folder was given too ({config.data_dir!r}): drop one")
    if config.pretrained and config.weights:
        raise UserError("--pretrained takes the default weights and --weights names others: give one of them")
    if config.opt_level == "O1" and config.keep_batchnorm_fp32 is not None:
        raise UserError(
            "--keep-batchnorm-fp32 acts on a half-precision model (O2, O3); O1 keeps every weight in float32: "
            "drop the flag or take --opt-level O2"
        )
    if config.audit_layout and config.evaluate:
        raise UserError("--audit-layout audits the first training step, and --evaluate has none: drop one of them")
    for key in ("evaluate", "check_data", "bench_data"):
        if config.summary and getattr(config, key):
            raise UserError(f"--summary and {flag_of(key)} each end the run: give one of them")
    if config.amp_dtype == "bfloat16" and config.loss_scale not in (None, 1.0):
        raise UserError("--amp-dtype bfloat16 has float32's range and needs no loss scale: drop --loss-scale")
    if config.lr_schedule == "cosine" and (config.lr_milestones or config.lr_step_size):
        raise UserError("--lr-schedule cosine takes neither --lr-milestones nor --lr-step-size: drop them")
    if config.lr_milestones and config.lr_step_size:
        raise UserError("--lr-milestones and --lr-step-size both say when the rate drops: give one of them")

    if config.opt == "nesterov" and not config.momentum:
        raise UserError("--opt nesterov looks ahead along the momentum: give --momentum above 0, or take --opt sgd")
    if config.opt == "rmsprop" and config.opt_level == "O3" and config.loss_scale == "dynamic":
        raise UserError(
            "--opt rmsprop has no fused form, which a dynamic --loss-scale needs at O3: take --opt-level O2"
        )


def _check_progressive(config: TrainConfig) -> None:
    stones = config.progressive
    if stones is None:
        return
    sizes, shares = stones[::2], stones[1::2]
    whole = len(stones) % 2 == 0 and all(size >= 1 and size == int(size) for size in sizes)
    rising = shares[:1] == (0,) and all(a < b < 1 for a, b in zip(shares, shares[1:], strict=False))
    if not stones or not whole or not rising:
        raise UserError(
            "--progressive needs sizes in pixels and shares of the run that rise from 0 to below 1, such as "
            f"128:0.0,160:0.3,224:0.9; got {' '.join(f'{item:g}' for item in stones)}"
        )
    if config.image_size not in (None, max(sizes)):
        raise UserError(
            f"--progressive goes up to {max(sizes):g} pixels and --image-size says {config.image_size}: drop --image-size"
        )


def _check_data_flags(config: TrainConfig) -> None:
    _check_progressive(config)
    limit = config.max_bad_images
    if isinstance(limit, str) and not (re.fullmatch(r"[0-9]+(\.[0-9]+)?%", limit) and float(limit[:-1]) <= 100):
        raise UserError(f"--max-bad-images needs a number of files or a share such as 1%, got {limit!r}")
    if isinstance(limit, int) and limit < 0:
        raise UserError(f"--max-bad-images must be at least 0, got {limit}")
    if config.sync_bn and config.bad_images == "skip":
        raise UserError(
            "--bad-images skip lets a rank without readable images take part with noise, which --sync-bn would "
            "mix into every rank's statistics: drop one of the two (--check-data finds the bad images beforehand)"
        )
    if (config.train_shards is None) != (config.val_shards is None):
        raise UserError("--train-shards and --val-shards come together: give both")
    if config.train_shards and (config.data_dir or config.synthetic):
        raise UserError("--train-shards and --val-shards stand in place of DIR and --synthetic: give one of them")
    has_images = {"val_labels": config.data_dir, "class_map": config.data_dir or config.train_shards}
    for key, given in has_images.items():
        if getattr(config, key) and not given and not config.resume:  # a checkpoint may bring the DIR
            raise UserError(f"{flag_of(key)} {getattr(config, key)!r} is about the images of DIR: give DIR too")
    for key in ("check_data", "bench_data"):
        if getattr(config, key) and not (config.data_dir or config.train_shards):
            raise UserError(f"{flag_of(key)} needs images: give DIR, or --train-shards and --val-shards")
    if config.check_data and config.bench_data:
        raise UserError("--check-data and --bench-data each end the run: give one of them")


def _check_epochs(config: TrainConfig) -> None:
    stones = config.lr_milestones or ()
    if config.lr_milestones == ():
        raise UserError("--lr-milestones needs at least one epoch (a rate that never drops is --lr-gamma 1)")
    if any(later <= earlier for earlier, later in zip(stones, stones[1:], strict=False)) or min(stones, default=1) <= 0:
        raise UserError(f"--lr-milestones must rise from above 0, got {' '.join(f'{s:g}' for s in stones)}")
    first = min(stones, default=config.lr_step_size)
    warmup = config.lr_warmup_epochs
    if warmup and first and warmup > first:
        raise UserError(f"--lr-warmup-epochs {warmup:g} passes the first drop of the rate at epoch {first:g}")
    if warmup and config.epochs is not None and warmup > config.epochs:
        raise UserError(f"--lr-warmup-epochs {warmup:g} passes the end of the run at epoch {config.epochs}")
    if config.epochs is not None and config.start_epoch >= config.epochs:
        raise UserError(f"--start-epoch {config.start_epoch} leaves nothing of --epochs {config.epochs}")

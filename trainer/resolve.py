"""The settings chosen at the start of a run: every null and ``auto`` filled in."""

from __future__ import annotations

from typing import Any

import torch

from trainer.config import DEFAULTS, TrainConfig
from trainer.distributed import Ranks
from trainer.errors import UserError
from trainer.hardware import default_workers, usable_cores
from trainer.levels import DTYPES, level_options
from trainer.optim import default_milestones, default_warmup
from trainer.weights import Preset, preset_of

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# A resumed run keeps these as they were first chosen, on whatever machine it goes on.
PINNED = (
    "num_classes", "image_size", "val_image_size", "val_resize", "interpolation", "mean", "std", "epochs", "opt_level",
)  # fmt: skip


def resolve_config(
    config: TrainConfig,
    device: torch.device,
    ranks: Ranks,
    folder_classes: int | None,
    saved: dict[str, Any] | None = None,
) -> tuple[TrainConfig, list[str]]:
    """Fill every null and ``auto``; returns the settings and notices on what was decided.

    ``folder_classes``: classes of DIR/train, None without a folder. ``saved``: the resolved settings
    of the checkpoint that the run goes on from.
    """
    try:
        if config.audit_layout and not config.channels_last:  # known only here: a checkpoint may bring the format
            raise UserError("--audit-layout looks for ops that drop channels-last: add --channels-last true")
        if config.ema_eval and config.model_ema is None:  # it, too, may come from a checkpoint
            raise UserError(
                "--ema-eval: the checkpoint holds no average of the weights; it was trained without --model-ema"
                if saved and config.evaluate
                else "--ema-eval takes the average that --model-ema keeps: add --model-ema"
            )
        if config.freeze_backbone and not (saved or config.pretrained or config.weights or config.evaluate):
            raise UserError("--freeze-backbone leaves random weights as they are: give --weights or --pretrained")
        config, auto_dtype = config.replace(**_pinned(config, saved or {})), _pinned_dtype(config, saved or {})
        notices: list[str] = []
        # A checkpoint holds what its weights were made for; their file may be gone.
        preset = Preset() if saved else preset_of(config.arch, config.pretrained, config.weights)
        of_weights = preset.num_classes if config.evaluate else None
        config = _resolve_run(config, device, ranks, folder_classes, of_weights)
        processes, cores = (config.workers or 0) * ranks.local_world_size, usable_cores()
        if config.has_files and processes > cores:
            notices.append(
                f"note: {processes} loader processes on {cores} usable cores: more than one a core gains nothing"
            )
        config = _resolve_input(config, preset)
        config = _resolve_precision(config, device, auto_dtype, notices)
        config = _resolve_format(config, saved or {}, notices)
        if device.type == "cuda" and config.opt_level == "O0" and config.channels_last is True:
            notices.append(
                "note: channels-last gains in half precision; in float32 (O0) on CUDA it was seen slower than contiguous: --opt-level "
                "O1 or O2, or scripts/compare.py to tell"
            )
        if config.opt in ("adamw", "rmsprop") and config.lr == DEFAULTS["lr"] and not config.evaluate:
            notices.append(
                f"note: --lr {config.lr:g} is a rate for SGD: --opt {config.opt} usually takes a hundredth of it"
            )
        return _resolve_schedule(config), notices
    except UserError as error:
        error.on_every_rank = True
        raise


def _pinned(config: TrainConfig, saved: dict[str, Any]) -> dict[str, Any]:
    pinned = {key: saved[key] for key in PINNED if getattr(config, key) is None and saved.get(key) is not None}
    if config.has_files:
        pinned.pop("num_classes", None)  # the folder says it; resumed_data compares
    if config.image_size not in (None, saved.get("image_size")):
        pinned.pop("val_image_size", None)  # both follow the image size
        pinned.pop("val_resize", None)
    if config.val_image_size not in (None, saved.get("val_image_size")):
        pinned.pop("val_resize", None)  # it follows the crop
    return pinned


def _pinned_dtype(config: TrainConfig, saved: dict[str, Any]) -> str | None:
    """What ``auto`` chose when the run began; None where it made no difference, or the level is another now."""
    level = saved.get("opt_level")
    return saved["amp_dtype"] if level not in (None, "O0") and config.opt_level in (None, level) else None


def _resolve_run(
    config: TrainConfig, device: torch.device, ranks: Ranks, folder_classes: int | None, of_weights: int | None
) -> TrainConfig:
    if config.num_classes and folder_classes and config.num_classes < folder_classes:
        raise UserError(
            f"--num-classes {config.num_classes} is fewer than the {folder_classes} classes of {config.data_dir or 'the tar files'}"
        )
    if config.sync_bn and device.type != "cuda":
        raise UserError("--sync-bn needs CUDA: torch has no synchronized batch norm for a CPU; drop the flag")
    config = config.replace(batch_size=_batch_size(config, ranks))
    return config.replace(
        synthetic=not config.has_files,
        device=device.type,
        num_classes=config.num_classes or folder_classes or of_weights or 1000,
        epochs=config.epochs or (90 if config.has_files else 1),
        workers=default_workers(usable_cores(), ranks.local_world_size) if config.workers is None else config.workers,
        val_batch_size=config.val_batch_size or config.batch_size,
    )


def _batch_size(config: TrainConfig, ranks: Ranks) -> int:
    """Images a batch of one process: as given, or its part of --global-batch-size."""
    if config.global_batch_size is None:
        return config.batch_size
    parts = ranks.world_size * config.grad_accum_steps
    if config.global_batch_size % parts:
        near = max(1, round(config.global_batch_size / parts)) * parts
        raise UserError(
            f"--global-batch-size {config.global_batch_size} does not divide into {ranks.world_size} processes x "
            f"{config.grad_accum_steps} batches a step (--grad-accum-steps): take {near}, or another number of processes",
        )
    return config.global_batch_size // parts


def _resolve_input(config: TrainConfig, preset: Preset) -> TrainConfig:
    if config.progressive:
        # The loader alone is timed at the full size.
        config = config.replace(
            image_size=int(max(config.progressive[::2])),
            progressive=None if config.bench_data else config.progressive,
        )
    usual = 299 if config.arch == "inception_v3" else 224
    image_size = config.image_size or preset.crop_size or usual
    val_size = config.val_image_size or (image_size if config.image_size else preset.crop_size or image_size)
    resize = preset.resize_size if preset.resize_size and val_size == preset.crop_size else round(val_size * 256 / 224)
    resize = config.val_resize or resize
    if resize < val_size:
        raise UserError(f"--val-resize {resize} is smaller than the validation crop of {val_size} pixels")
    return config.replace(
        image_size=image_size,
        val_image_size=val_size,
        val_resize=resize,
        interpolation=config.interpolation or preset.interpolation or "bilinear",
        mean=config.mean or preset.mean or IMAGENET_MEAN,
        std=config.std or preset.std or IMAGENET_STD,
    )


def _resolve_precision(
    config: TrainConfig, device: torch.device, auto_dtype: str | None, notices: list[str]
) -> TrainConfig:
    level = config.opt_level or ("O1" if device.type == "cuda" else "O0")
    if device.type == "mps":
        notices.append("note: mps is untested and runs O0")
        if level != "O0":
            raise UserError(f"--device mps runs O0 only, got --opt-level {level}")
    dtype, scale = config.amp_dtype, config.loss_scale
    if dtype == "auto":
        dtype = auto_dtype or ("float16" if device.type == "cuda" else "bfloat16")
        if dtype == "bfloat16" and level != "O0" and scale not in (None, 1.0):
            notices.append(
                f"note: bfloat16, the choice for a CPU, needs no loss scale: {scale} is not used (--amp-dtype float16 would)"
            )
            scale = 1.0
        if dtype == "bfloat16" and level == "O0" and scale is not None:
            dtype = "float16"  # nothing is half at O0; the asked scale acts on float32 gradients
    # Checked with the level filled in, so that an impossible pair is named as such.
    config = config.replace(opt_level=level)
    defaults = level_options(level, DTYPES[dtype])
    return config.replace(
        amp_dtype=dtype,
        keep_batchnorm_fp32=defaults.keep_batchnorm_fp32
        if config.keep_batchnorm_fp32 is None
        else config.keep_batchnorm_fp32,
        loss_scale=defaults.loss_scale if scale is None else scale,
    )


def _resolve_format(config: TrainConfig, saved: dict[str, Any], notices: list[str]) -> TrainConfig:
    """``--channels-last auto``: what the run began with; where that is unknown, ``build.build_stepper`` times both."""
    if config.channels_last != "auto":
        return config
    chosen, why = saved.get("channels_last"), "what this run began with"
    if config.evaluate and chosen is None:
        chosen, why = False, "since an evaluation is one pass"
    if chosen is None:
        return config
    notices.append(f"--channels-last auto: {str(chosen).lower()}, {why}")
    return config.replace(channels_last=chosen)


def _resolve_schedule(config: TrainConfig) -> TrainConfig:
    assert config.epochs is not None
    milestones = config.lr_milestones
    if config.lr_schedule == "step" and config.lr_step_size is None and milestones is None:
        milestones = default_milestones(config.epochs)
    warmup = config.lr_warmup_epochs
    if warmup is None:
        first = min(milestones or (), default=config.lr_step_size or float(config.epochs))
        warmup = min(default_warmup(config.epochs), first)
    return config.replace(lr_milestones=milestones, lr_warmup_epochs=warmup)

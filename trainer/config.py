"""Every setting of a run, its default and what makes it impossible. Imports no torch.

``None`` means "chosen at the start of the run": ``trainer.environment.resolve_config`` fills it.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from trainer.errors import UserError

OPT_LEVELS = ("O0", "O1", "O2", "O3")
AMP_DTYPES = ("auto", "float16", "bfloat16")
DEVICES = ("auto", "cpu", "cuda", "mps")
INTERPOLATIONS = ("bilinear", "bicubic")
LR_SCHEDULES = ("step", "cosine")
LR_SCALINGS = ("linear", "none")
CPU_HEAPS = ("auto", "retain", "default")

# Settings of one start, not of the run: a checkpoint does not hand them on.
PER_START = (
    "output_dir",
    "resume",
    "start_epoch",
    "traceback",
    "stop_after_epochs",
    "stop_after_steps",
    "prof",
    "evaluate",
)
# Kept out of config.yaml for good: they say where, not what. (`config` and `local_rank` are no fields.)
NOT_IN_FILE = ("output_dir", "resume")
# `--resume auto` may take a run that differs in these: they change neither data nor results.
MATCH_IGNORES = (*PER_START, "cpu_heap", "workers", "device", "print_freq", "tensorboard")


@dataclass(frozen=True)
class TrainConfig:
    """One run's settings. Field names are the canonical flags with underscores.

    Raises ``UserError`` (a ValueError) when a value is out of range or two of them exclude each other.
    """

    # data
    data_dir: str | None = None
    synthetic: bool = False
    synthetic_size: int = 25000
    num_classes: int | None = None
    image_size: int | None = None
    val_image_size: int | None = None
    val_resize: int | None = None
    interpolation: str | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    hflip: float = 0.5
    crop_scale: tuple[float, float] = (0.08, 1.0)
    batch_size: int = 256
    val_batch_size: int | None = None
    workers: int | None = None
    # model
    arch: str = "resnet18"
    pretrained: bool = False
    weights: str | None = None
    # schedule and optimizer
    epochs: int | None = None
    start_epoch: int = 0
    steps_per_epoch: int | None = None
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    lr_scaling: str = "linear"
    lr_schedule: str = "step"
    lr_milestones: tuple[float, ...] | None = None
    lr_step_size: float | None = None
    lr_gamma: float = 0.1
    lr_warmup_epochs: float | None = None
    lr_warmup_decay: float = 0.0
    grad_accum_steps: int = 1
    clip_grad_norm: float | None = None
    label_smoothing: float = 0.0
    # precision, memory format, device
    opt_level: str | None = None
    amp_dtype: str = "auto"
    keep_batchnorm_fp32: bool | None = None
    loss_scale: str | float | None = None
    channels_last: bool = False
    sync_bn: bool = False
    device: str = "auto"
    compile: bool = False
    tf32: bool = True
    cpu_heap: str = "auto"
    micro_batch: int | None = None
    # run
    output_dir: str | None = None
    resume: str | None = None
    stop_after_epochs: int | None = None
    stop_after_steps: int | None = None
    evaluate: bool = False
    seed: int = 0
    deterministic: bool = False
    print_freq: int = 10
    timing_warmup_steps: int = 5
    tensorboard: bool = True
    prof: int | None = None
    traceback: bool = False

    def __post_init__(self) -> None:
        _check_ranges(self)
        _check_choices(self)
        _check_pairs(self)

    def replace(self, **changes: Any) -> TrainConfig:
        return dataclasses.replace(self, **changes)


KEYS = tuple(field.name for field in dataclasses.fields(TrainConfig))
DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(TrainConfig)}


def flag_of(key: str) -> str:
    """The canonical flag of a key: ``batch_size`` -> ``--batch-size``."""
    return "--" + key.replace("_", "-")


_AT_LEAST: dict[str, float] = {
    "synthetic_size": 1, "num_classes": 1, "image_size": 1, "val_image_size": 1, "val_resize": 1, "batch_size": 1,
    "val_batch_size": 1, "workers": 0, "epochs": 1, "start_epoch": 0, "steps_per_epoch": 1, "lr": 0, "momentum": 0,
    "weight_decay": 0, "lr_gamma": 0, "lr_warmup_epochs": 0, "grad_accum_steps": 1, "micro_batch": 1, "stop_after_epochs": 1,
    "stop_after_steps": 1, "seed": 0, "print_freq": 1, "timing_warmup_steps": 0, "prof": 0,
}  # fmt: skip
_UP_TO_ONE = ("hflip", "label_smoothing", "lr_warmup_decay")
_POSITIVE = ("clip_grad_norm", "lr_step_size")
_CHOICES = {
    "opt_level": OPT_LEVELS,
    "amp_dtype": AMP_DTYPES,
    "device": DEVICES,
    "interpolation": INTERPOLATIONS,
    "lr_schedule": LR_SCHEDULES,
    "lr_scaling": LR_SCALINGS,
    "cpu_heap": CPU_HEAPS,
}


def _check_ranges(config: TrainConfig) -> None:
    for key, least in _AT_LEAST.items():
        value = getattr(config, key)
        if value is not None and not least <= value < float("inf"):
            raise UserError(f"{flag_of(key)} must be at least {least:g}, got {value}")
    for key in _UP_TO_ONE:
        if not 0 <= getattr(config, key) <= 1:
            raise UserError(f"{flag_of(key)} must lie between 0 and 1, got {getattr(config, key)}")
    for key in _POSITIVE:
        value = getattr(config, key)
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{flag_of(key)} must be above 0, got {value}")
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
    if config.amp_dtype == "bfloat16" and config.loss_scale not in (None, 1.0):
        raise UserError("--amp-dtype bfloat16 has float32's range and needs no loss scale: drop --loss-scale")
    if config.lr_schedule == "cosine" and (config.lr_milestones or config.lr_step_size):
        raise UserError("--lr-schedule cosine takes neither --lr-milestones nor --lr-step-size: drop them")
    if config.lr_milestones and config.lr_step_size:
        raise UserError("--lr-milestones and --lr-step-size both say when the rate drops: give one of them")
    _check_epochs(config)


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

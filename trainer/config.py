"""Every setting of a run and its default; what makes it impossible is in ``checks``. Imports no torch.

``None`` means "chosen at the start of the run": ``trainer.resolve.resolve_config`` fills it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

from trainer.checks import check

T = TypeVar("T")

# Settings of one start, not of the run: a checkpoint does not hand them on.
PER_START = (
    "output_dir",
    "resume",
    "start_epoch",
    "traceback",
    "stop_after_epochs",
    "stop_after_steps",
    "prof",
    "step_times",
    "evaluate",
    "rescan",
    "check_data",
    "bench_data",
    "json",
    "summary",
    "audit_layout",
    "dist_timeout",
)
# Kept out of config.yaml for good: they say where, not what. (`config` and `local_rank` are no fields.)
NOT_IN_FILE = ("output_dir", "resume")
# `--resume auto` may take a run that differs in these: they change neither data nor results.
MATCH_IGNORES = (
    *PER_START, "cpu_heap", "workers", "device", "print_freq", "tensorboard", "save_every_steps", "save_every_minutes",
    "keep_checkpoints", "async_save", "on_save_error", "rewind",
)  # fmt: skip


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
    global_batch_size: int | None = None
    val_batch_size: int | None = None
    workers: int | None = None
    ra_reps: int = 1
    progressive: tuple[float, ...] | None = None  # size, share of the run, size, share, ...
    auto_augment: str | None = None
    random_erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    exif_orientation: str = "ignore"
    max_image_pixels: int | None = None
    bad_images: str = "fail"
    max_bad_images: int | str | None = None
    val_labels: str | None = None
    class_map: str | None = None
    rescan: bool = False
    train_shards: str | None = None
    val_shards: str | None = None
    check_data: str | None = None
    bench_data: int | None = None
    json: bool = False
    # model
    arch: str = "resnet18"
    pretrained: bool = False
    weights: str | None = None
    freeze_backbone: bool = False
    stochastic_depth: float | None = None
    # schedule and optimizer
    epochs: int | None = None
    start_epoch: int = 0
    steps_per_epoch: int | None = None
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    norm_weight_decay: float | None = None
    bias_weight_decay: float | None = None
    opt: str = "sgd"
    lr_scaling: str = "linear"
    lr_schedule: str = "step"
    lr_milestones: tuple[float, ...] | None = None
    lr_step_size: float | None = None
    lr_gamma: float = 0.1
    lr_min: float = 0.0
    lr_warmup_epochs: float | None = None
    lr_warmup_decay: float = 0.0
    grad_accum_steps: int = 1
    clip_grad_norm: float | None = None
    label_smoothing: float = 0.0
    val_every: int = 1
    early_stop: int | None = None
    model_ema: float | None = None
    ema_eval: bool = False
    # precision, memory format, device
    opt_level: str | None = None
    amp_dtype: str = "auto"
    keep_batchnorm_fp32: bool | None = None
    loss_scale: str | float | None = None
    channels_last: bool | str = False  # text is "auto" alone, which the start of a run replaces by a bool
    audit_layout: bool | None = None
    sync_bn: bool = False
    device: str = "auto"
    compile: bool = False
    tf32: bool = True
    cpu_heap: str = "auto"
    micro_batch: int | None = None
    # run
    output_dir: str | None = None
    resume: str | None = None
    save_every_steps: int | None = None
    save_every_minutes: float = 15.0
    keep_checkpoints: int = 3
    async_save: bool = True
    on_save_error: str | None = None
    rewind: bool = False
    stop_after_epochs: int | None = None
    stop_after_steps: int | None = None
    evaluate: bool = False
    summary: bool = False
    seed: int = 0
    deterministic: bool = False
    print_freq: int = 10
    timing_warmup_steps: int = 5
    tensorboard: bool = True
    prof: int | None = None
    step_times: bool = False
    traceback: bool = False
    dist_timeout: float = 300.0

    def __post_init__(self) -> None:
        check(self)

    @property
    def has_files(self) -> bool:
        """Whether images come from a folder or from tar files; they are made up otherwise."""
        return bool(self.data_dir or self.train_shards)

    def replace(self, **changes: Any) -> TrainConfig:
        return dataclasses.replace(self, **changes)


KEYS = tuple(field.name for field in dataclasses.fields(TrainConfig))
DEFAULTS: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(TrainConfig)}


def pick(options: type[T], config: TrainConfig) -> T:
    """An options dataclass filled with the settings of the same names."""
    return options(**{field.name: getattr(config, field.name) for field in dataclasses.fields(options)})  # type: ignore[arg-type]

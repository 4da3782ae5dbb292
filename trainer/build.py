"""Builds the group, the model with all that wraps it, and the learning-rate schedule, from settings."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.average import WeightAverage
from trainer.config import TrainConfig
from trainer.distributed import Group, Ranks, read_ranks
from trainer.environment import resolve_device, seed_everything, set_backends, set_threads
from trainer.errors import UserError
from trainer.exits import Session
from trainer.format_trial import choose_format, expected_passes
from trainer.freeze import freeze_backbone, frozen_norms
from trainer.hardware import expected_memory, free_memory
from trainer.heap import choose_heap, retain_heap
from trainer.levels import DTYPES, LevelOptions, level_options, override_options
from trainer.memory_format import apply_to_model, check_stride_orders, resolve_memory_format
from trainer.models import build_model
from trainer.optim import LRSchedule, build_lr_schedule, build_optimizer, decay_groups, drop_epochs, scale_lr
from trainer.precision import Precision, is_fused
from trainer.step import Stepper
from trainer.weights import load_weights


def open_group(
    device_name: str, deterministic: bool, tf32: bool, session: Session, timeout_s: float = 300.0
) -> tuple[Group, int]:
    """Device, backend switches and process group; returns the group and the threads of this process."""
    ranks = read_ranks()
    session.main_rank = ranks.is_main
    device = resolve_device(device_name, ranks.local_rank)
    set_backends(device, deterministic, tf32)
    threads = set_threads(ranks, device)
    session.group = group = Group(ranks, device, timeout_s)
    return group, threads


# Weights, gradients and momentum; autocast's half copies; at O2 masters and their gradients.
_BYTES_A_PARAMETER = {"O0": 12, "O1": 14, "O2": 16, "O3": 6}
_BYTES_OF_AVERAGE = 4


@dataclass(frozen=True)
class Built:
    """A stepper, lines for the log, the heap (``choice``, ``why``, bytes ``expected`` and ``free``, None: unknown),
    and the memory format's switch, ``auto`` settled."""

    stepper: Stepper
    lines: list[str]
    heap: dict[str, Any]
    channels_last: bool


def build_stepper(
    config: TrainConfig,
    group: Group,
    new_weights: bool,
    train_images: int | None = None,
    estimate_memory: bool = True,
) -> Built:
    """Model -> SyncBN -> device -> memory format -> precision -> optimizer -> DDP -> compile -> average, in this order.

    ``new_weights``: load ``--pretrained`` or ``--weights``; a checkpoint that follows brings its own.
    ``train_images``: of an epoch, over all ranks; ``--channels-last auto`` is settled in bounds that follow from it.
    ``estimate_memory``: a second or two on a CPU, which ``--cpu-heap auto`` decides by.
    """
    assert config.num_classes is not None
    assert config.opt_level is not None
    seed_everything(config.seed)
    model = build_model(config.arch, config.num_classes, config.stochastic_depth)
    loaded = _load_weights(model, config, group) if new_weights else None
    frozen = freeze_backbone(model, config.arch, config.num_classes) if config.freeze_backbone else None
    half = DTYPES[config.amp_dtype]
    options = override_options(level_options(config.opt_level, half), config.keep_batchnorm_fp32, config.loss_scale)
    heap = _set_heap(model, config, group, estimate_memory)
    lines = [line for line in (loaded, frozen) if line]
    if config.channels_last == "auto":
        passes = expected_passes(config, train_images, group.world_size)
        channels_last, why = group.on_main(lambda: _time_formats(model, config, options, group.device, passes))
        config, lines = config.replace(channels_last=channels_last), [*lines, why]
    stepper = _assemble(model, config, options, group)
    if not is_fused(stepper.optimizer):
        lines.append(
            f"note: --opt {config.opt} has no fused form on {group.device.type}: the host waits for the device once a step, to "
            "keep a non-finite one from the weights"
        )
    # Ranks built the same model; from here on their dropout differs.
    seed_everything(config.seed, group.ranks.rank + 1)
    assert isinstance(config.channels_last, bool)
    return Built(stepper, lines, heap, config.channels_last)


def _assemble(model: nn.Module, config: TrainConfig, options: LevelOptions, group: Group) -> Stepper:
    """From SyncBN on."""
    if config.sync_bn:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = apply_to_model(model.to(group.device), resolve_memory_format(config.channels_last))
    precision = Precision(options, DTYPES[config.amp_dtype], group.device)
    precision.convert_model(model)
    stepped = precision.bind(model)
    if not stepped:
        raise UserError(f"--arch {config.arch}: this model has no parameter to train", True)
    groups = decay_groups(model, stepped, config.weight_decay, config.norm_weight_decay, config.bias_weight_decay)
    optimizer = build_optimizer(groups, config.lr, config.momentum, config.weight_decay, group.device, config.opt)
    check_stride_orders(optimizer, precision.masters)
    wrapped = _wrap(model, group, config.compile, static_graph_is_safe(config))
    stepper = Stepper(
        model, wrapped, optimizer, precision, group, config.label_smoothing, config.clip_grad_norm, config.micro_batch
    )
    stepper.frozen = frozen_norms(model) if config.freeze_backbone else []
    if config.model_ema is not None and (config.ema_eval or not config.evaluate):
        stepper.average = WeightAverage(model, config.model_ema, precision.masters)
    return stepper


def _time_formats(
    model: nn.Module, config: TrainConfig, options: LevelOptions, device: torch.device, passes: int | None
) -> tuple[bool, str]:
    """Both formats on copies, in a world of one: other ranks wait, so there is nobody to reduce with."""

    def build(channels_last: bool) -> Stepper:
        alone = config.replace(channels_last=channels_last, sync_bn=False, compile=False)
        return _assemble(copy.deepcopy(model), alone, options, Group(Ranks(), device))

    return choose_format(build, config, device, passes)


def _load_weights(model: nn.Module, config: TrainConfig, group: Group) -> str | None:
    """Rank 0 first: named weights are downloaded once and then found in the cache."""

    def load() -> str | None:
        return load_weights(model, config.arch, config.pretrained, config.weights, not config.evaluate)

    line = group.on_main(load)
    if not group.is_main:
        load()
    return line


def _set_heap(model: nn.Module, config: TrainConfig, group: Group, estimate: bool) -> dict[str, Any]:
    """Choose the CPU's heap before the first large activation; the same choice on every rank of a machine."""
    if group.device.type != "cpu":
        return {"choice": "default", "why": "the device is no CPU", "expected": None, "free": None}
    batch = min(config.batch_size, config.micro_batch or config.batch_size)
    expected = step_memory(model, config, batch) if estimate else None
    expected = expected and expected * group.ranks.local_world_size
    free = group.on_main(free_memory)
    choice, why = choose_heap(config.cpu_heap, "cpu", expected, free)
    if choice == "retain" and not retain_heap():
        choice, why = "default", "the C library refused"
    return {"choice": choice, "why": why, "expected": expected, "free": free}


def step_memory(model: nn.Module, config: TrainConfig, batch: int) -> int | None:
    """Bytes alive at the peak of a training step on ``batch`` images (``hardware.expected_memory``), with this run's
    precision and average of the weights."""
    assert config.image_size is not None
    assert config.opt_level is not None
    share = 1.0 if config.opt_level == "O0" else 0.5
    state = _BYTES_A_PARAMETER[config.opt_level] + (0 if config.model_ema is None else _BYTES_OF_AVERAGE)
    return expected_memory(model, config.image_size, batch, share, state)


def static_graph_is_safe(config: TrainConfig) -> bool:
    """Whether DistributedDataParallel may take every step's graph for the first one's: torchvision's models
    have no branch that depends on the data, and one backward pass a step is what its first pass counts on."""
    own_code = ":" in config.arch
    return not own_code and config.grad_accum_steps == 1 and config.micro_batch is None and not config.compile


def _wrap(model: nn.Module, group: Group, compiled: bool, static_graph: bool) -> nn.Module:
    wrapped = model
    if group.active:
        device_ids = [group.device.index] if group.device.type == "cuda" else None
        # Batch-norm statistics stay each rank's own; rank 0's are broadcast before validation.
        # torch 2.14 renamed the switch and warns of the old name.
        accepted = inspect.signature(DistributedDataParallel).parameters
        own_buffers: dict[str, Any] = {
            "forward_sync_buffers" if "forward_sync_buffers" in accepted else "broadcast_buffers": False
        }
        wrapped = DistributedDataParallel(
            model, device_ids=device_ids, gradient_as_bucket_view=True, static_graph=static_graph, **own_buffers
        )
    return torch.compile(wrapped) if compiled else wrapped  # type: ignore[return-value]


def build_schedule(config: TrainConfig, global_batch_size: int, steps_per_epoch: int) -> tuple[LRSchedule, str]:
    """The learning rate of every step, and a line that says what it will be."""
    assert config.epochs is not None
    assert config.lr_warmup_epochs is not None
    lr, line = scale_lr(config.lr, global_batch_size, config.lr_scaling)
    if config.lr_min > lr:
        raise UserError(f"--lr-min {config.lr_min:g} lies above the rate that it is the end of ({line})", True)
    cosine = config.lr_schedule == "cosine"
    drops = () if cosine else drop_epochs(config.lr_milestones, config.lr_step_size, config.epochs)
    schedule = build_lr_schedule(
        lr,
        config.epochs,
        steps_per_epoch,
        (config.lr_warmup_epochs, config.lr_warmup_decay),
        cosine,
        drops,
        config.lr_gamma,
        config.lr_min,
    )
    ranks = global_batch_size // (config.batch_size * config.grad_accum_steps)
    batch = (
        f"batch {config.batch_size} x {ranks} processes x {config.grad_accum_steps} a step = {global_batch_size} images"
    )
    return schedule, f"{batch}; {line}; {schedule.describe()}"

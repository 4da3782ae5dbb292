"""What a run prints before its first step: first what apex's main_amp.py printed, then ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.config import TrainConfig
from trainer.hardware import cpu_info, half_precision_notice
from trainer.levels import MEANINGS, dtype_name, level_options
from trainer.models import TrainingLoss, main_output
from trainer.precision import Precision
from trainer.run_log import Console


def say_request(
    console: Console, asked: TrainConfig, resolved: TrainConfig, device: torch.device, threads: int
) -> None:
    """The three options as asked, the cuDNN version or the CPU, the model's name."""
    console.say(f"opt_level = {resolved.opt_level}")
    console.say(f"keep_batchnorm_fp32 = {asked.keep_batchnorm_fp32}")
    console.say(f"loss_scale = {asked.loss_scale}")
    console.say()
    if device.type == "cuda":
        console.say(f"CUDNN VERSION: {torch.backends.cudnn.version()}")
        console.say(f"GPU: {torch.cuda.get_device_name(device)}")
    else:
        name, features = cpu_info()
        console.say(f"CPU: {name} ({', '.join(sorted(features)) or 'no AVX2'}), {threads} threads a process")
    console.say()
    console.say(f"=> creating model '{resolved.arch}'")


def say_precision(console: Console, precision: Precision, model: nn.Module, image_size: int) -> None:
    """The level's defaults, the overrides, the result, and the real dtypes below."""
    options = precision.options
    console.say(f"Selected optimization level {options.opt_level}:  {MEANINGS[options.opt_level]}\n")
    console.say("Defaults for this optimization level are:")
    for line in level_options(options.opt_level, precision.half).lines():
        console.say(line)
    console.say("Processing user overrides (additional kwargs that are not None)...")
    console.say("After processing overrides, optimization options are:")
    for line in options.lines():
        console.say(line)
    console.say()
    console.say(
        "dtypes: " + ", ".join(f"{key} {value}" for key, value in real_dtypes(precision, model, image_size).items())
    )
    if precision.device.type == "cpu":
        notice = half_precision_notice(options.opt_level, precision.half, cpu_info()[1])
        if notice:
            console.notice(notice)


def real_dtypes(precision: Precision, model: nn.Module, image_size: int) -> dict[str, str]:
    """Dtypes read off the model and off the forward pass of one black image (evaluation mode: nothing moves)."""
    found = precision.describe(model)
    image = torch.zeros(1, 3, image_size, image_size, dtype=precision.input_dtype, device=precision.device)
    try:
        with torch.no_grad(), precision.autocast():
            output = main_output(model.eval()(image))
        found["output"] = dtype_name(output.dtype)
        found["loss"] = dtype_name(
            TrainingLoss()(output, torch.zeros(1, dtype=torch.int64, device=precision.device)).dtype
        )
    except Exception:
        # A model that cannot take this image says so better in its first step.
        found["output"] = found["loss"] = "unknown"
    finally:
        model.train()
    return {**found, **precision.describe_scaling()}


def say_data(console: Console, resolved: TrainConfig, train: Any, val: Any, dropped: int) -> None:
    """What the run trains on; ``train`` and ``val`` are folder indexes or made-up images."""
    if resolved.synthetic:
        console.say(
            f"data: made-up images (no DIR given): {len(train)} to train on, {len(val)} to validate, {resolved.num_classes} classes, "
            f"{resolved.image_size} pixels; made in memory, so --workers is not used"
        )
    else:
        # Tar files are named by their index: an address may hold a password.
        console.say(f"data: {resolved.data_dir or 'tar files'}: train {train.describe()}; val {val.describe()}")
        console.say(
            f"images: train crop {resolved.image_size}, val crop {resolved.val_image_size} of {resolved.val_resize}, {resolved.interpolation}, "
            f"mean {resolved.mean}, std {resolved.std}; {resolved.workers} workers a rank"
        )
        if train.describe_decoder():
            console.notice(train.describe_decoder())
    if resolved.progressive:
        stones = list(zip(resolved.progressive[::2], resolved.progressive[1::2], strict=True))
        assert resolved.epochs is not None
        last = 1 - 1 / resolved.epochs  # where the last epoch begins
        steps = ", ".join(f"{size:g} pixels from {share:.0%} of the run" for size, share in stones)
        console.say(f"--progressive: training images of {steps}; each change waits for an epoch to begin")
        late = [f"{size:g}" for size, share in stones if share > last + 1e-9]
        if late:
            console.notice(f"{resolved.epochs} epochs never reach the size{'s' if late[1:] else ''} {', '.join(late)}")
    augmentation = augmentation_line(resolved)
    if augmentation:
        console.say(augmentation)
    if resolved.num_classes is not None and resolved.num_classes <= 5:
        console.say(
            f"{resolved.num_classes} classes: Prec@5 counts the best {min(5, resolved.num_classes)}, so it is always 100"
        )
    if dropped:
        console.notice(
            f"{dropped} images at the end of each epoch are left over: a rank would get fewer than two of them"
        )


def augmentation_line(resolved: TrainConfig) -> str | None:
    """What is done to training images beyond crop and flip; None where that is nothing."""
    of_sample = [resolved.auto_augment] if resolved.auto_augment else []
    of_sample += [f"random erase {resolved.random_erase:g}"] if resolved.random_erase else []
    of_sample += [f"each sample {resolved.ra_reps} times"] if resolved.ra_reps > 1 else []
    of_batch = [f"{key} {alpha:g}" for key in ("mixup", "cutmix") if (alpha := getattr(resolved, key))]
    if not of_sample and not of_batch:
        return None
    line = "augmentation: " + ", ".join(of_sample + of_batch)
    if len(of_batch) == 2:
        line += " (each batch takes one of these two)"
    if of_batch:
        line += "; training accuracy is against the label with the larger share of each image"
    if of_sample and resolved.synthetic:
        line += f"; made-up images go without {' and '.join(of_sample)}"
    return line


def say_heap(console: Console, resolved: TrainConfig, heap: dict[str, Any]) -> None:
    """On a CPU the choice of its heap, and a line where this machine's ranks need more memory than is free."""
    if resolved.device != "cpu":
        return
    console.say(f"CPU heap: {heap['choice']} ({heap['why']})")
    expected, free = heap["expected"], heap["free"]
    if expected is not None and free is not None and expected > free:
        console.notice(
            f"this run needs about {expected / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are free: "
            f"lower --batch-size (now {resolved.batch_size}), --micro-batch or --image-size (now {resolved.image_size})"
        )

"""``--summary``: what a model is and what its training will need, said before a long run, which does not follow."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trainer.build import Built
from trainer.config import TrainConfig
from trainer.finish import memory_errors_named
from trainer.format_trial import made_up_step
from trainer.hardware import free_memory, peak_memory_gib, saved_activations
from trainer.run_log import Console

SMALL_BATCHES = (4, 8)
_STEPS = 3  # with momentum from the first, and with a heap that has seen a whole step before


def say_summary(config: TrainConfig, built: Built, console: Console) -> tuple[str, None]:
    """Print the summary of ``built``, whose model takes a few steps on made-up images and is of no use afterwards; returns how the run ends.

    Activations and MACs are found on the meta device; the peak is measured on small batches and scaled.
    """
    model, device = built.stepper.model, built.stepper.precision.device
    size, batch = config.image_size or 0, min(config.batch_size, config.micro_batch or config.batch_size)
    for line in [_parameters(model), _macs(model, size), _activations(model, size, batch, config.opt_level != "O0")]:
        console.say(line)
    if device.type == "mps":
        console.say("expected peak memory: unknown on this device")
        return "done", None
    with memory_errors_named(config, device):
        peaks = _measured_peaks(config, built, batch)
    expected = scaled_peak(peaks, batch)
    found = ", ".join(f"{peak:.2f} GiB at batch {size}" for size, peak in peaks)
    kind = "resident" if device.type == "cpu" else "allocated"
    how = f"measured: {found}" if peaks[-1][0] == batch else f"measured: {found}; scaled to {batch}"
    console.say(f"expected peak memory: {expected:.2f} GiB {kind} a process ({how})")
    free = free_memory() if device.type == "cpu" else torch.cuda.mem_get_info(device)[1]
    if free is not None:
        console.say(f"memory {'free' if device.type == 'cpu' else 'of the device'}: {free / 2**30:.1f} GiB")
    return "done", None


def scaled_peak(peaks: list[tuple[int, float]], batch: int) -> float:
    """The line through the peaks of two small batches, at ``batch``; the one peak where that is all there is."""
    size, peak = peaks[-1]
    if len(peaks) == 1:
        return peak
    before, least = peaks[0]
    return peak + (peak - least) / (size - before) * (batch - size)


def count_macs(model: nn.Module, image_size: int) -> int | None:
    """Multiply-accumulates of convolutions and matrix products for one image's forward pass; None where the model
    cannot run on the meta device."""
    counter = FlopCounterMode(display=False)
    try:
        twin = copy.deepcopy(model).to("meta").eval()
        with counter, torch.no_grad():
            dtype = next(twin.parameters()).dtype
            twin(torch.empty(1, 3, image_size, image_size, device="meta", dtype=dtype))
    except Exception:  # whatever a model that reads its values may raise
        return None
    return counter.get_total_flops() // 2


def _measured_peaks(config: TrainConfig, built: Built, batch: int) -> list[tuple[int, float]]:
    """Batch sizes and peak GiB of this process at each: up to two small ones."""
    device, peaks = built.stepper.precision.device, []
    for size in sorted({min(batch, small) for small in SMALL_BATCHES}):
        step: Callable[[], None] | None = made_up_step(
            built.stepper, built.channels_last, config.replace(batch_size=size, micro_batch=None)
        )
        for _ in range(_STEPS):
            assert step is not None
            step()
        peaks.append((size, peak_memory_gib(device)))
        step = None  # and with it its images
        gc.collect()
    return peaks


def _parameters(model: nn.Module) -> str:
    total = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    frozen = "" if trained == total else f", {trained:,} of them trained"
    return f"parameters: {total:,}{frozen}"


def _macs(model: nn.Module, image_size: int) -> str:
    macs = count_macs(model, image_size)
    text = "unknown (this model cannot run on the meta device)" if macs is None else f"{macs / 1e9:.3f} G"
    return f"MACs of an image's forward pass at {image_size} pixels: {text}"


def _activations(model: nn.Module, image_size: int, batch: int, half: bool) -> str:
    saved = saved_activations(model, image_size)
    share = 0.5 if half else 1.0
    text = "unknown" if saved is None else f"{saved[0] * share * batch / 2**30:.2f} GiB"
    return f"activations kept for the backward pass at batch {batch}: {text}"

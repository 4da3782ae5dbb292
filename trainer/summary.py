"""``--summary``: what a model is and what its training will need, said before a long run, which does not follow."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from trainer.build import Built, step_memory
from trainer.config import TrainConfig
from trainer.finish import model_errors_named
from trainer.format_trial import made_up_step
from trainer.hardware import free_memory, peak_memory_gib, saved_activations
from trainer.run_log import Console

SMALL_BATCH = 8
_STEPS = 3  # with momentum from the first, and with a heap that has seen a whole step before


def say_summary(config: TrainConfig, built: Built, console: Console) -> tuple[str, None]:
    """Print the summary of ``built``, whose model takes a few steps on made-up images and is of no use afterwards; returns how the run ends."""
    model, device = built.stepper.model, built.stepper.precision.device
    size, batch = config.image_size or 0, min(config.batch_size, config.micro_batch or config.batch_size)
    with model_errors_named(config, device):
        # First of all: the copies that the other lines take would count as what the process held before.
        peak = _peak(config, built, batch) if device.type != "mps" else "expected peak memory: unknown on this device"
    for line in [_parameters(model), _macs(model, size), _activations(model, size, batch, config.opt_level != "O0")]:
        console.say(line)
    console.say(peak)
    if device.type == "mps":
        return "done", None
    free = free_memory() if device.type == "cpu" else torch.cuda.mem_get_info(device)[1]
    if free is not None:
        console.say(f"memory {'free' if device.type == 'cpu' else 'of the device'}: {free / 2**30:.1f} GiB")
    return "done", None


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


def _peak(config: TrainConfig, built: Built, batch: int) -> str:
    """The growth of the peak in a few steps on a small batch, times what is alive at ``batch`` over what is at the small one.

    So the allocator's overhead, which a count of tensors leaves out, is that of this machine, heap and model.
    """
    model, device, small = built.stepper.model, built.stepper.precision.device, min(batch, SMALL_BATCH)
    before = peak_memory_gib(device)
    step = made_up_step(built.stepper, built.channels_last, config.replace(batch_size=small, micro_batch=None))
    for _ in range(_STEPS):
        step()
    peak = peak_memory_gib(device)
    kind = "resident" if device.type == "cpu" else "allocated"
    found = f"measured: {peak:.2f} GiB at batch {small}, {before:.2f} GiB before"
    if small == batch:
        return f"expected peak memory: {peak:.2f} GiB {kind} a process ({found})"
    alive = [step_memory(model, config, size) for size in (small, batch)]
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    if alive[0] is None or alive[1] is None:
        return f"expected peak memory: unknown (this model cannot run on the meta device; {found})"
    times = (alive[1] - weights) / (alive[0] - weights)  # the weights were there before
    return f"expected peak memory: {before + (peak - before) * times:.2f} GiB {kind} a process ({found}; growth scaled by {times:.2f})"


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

"""What test_distributed_format.py starts on two ranks: every case in one pair of processes, findings to a file.

torchrun --nproc-per-node 2 tests/format_worker.py FOLDER
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from toy_models import every_convolution

from data.sampler import StepPlan
from trainer.build import build_stepper
from trainer.checkpoint import read_checkpoint
from trainer.cli import parse
from trainer.config import TrainConfig
from trainer.content import restore
from trainer.distributed import Group, Ranks, read_ranks
from trainer.errors import UserError
from trainer.memory_format import apply_to_model, resolve_memory_format
from trainer.metrics import RunningSums
from trainer.profiling import StepProfiler
from trainer.resolve import resolve_config
from trainer.run_state import Progress
from trainer.saver import CheckpointSaver
from trainer.step import Stepper
from trainer.timing import Clock, StepTimer

CPU = torch.device("cpu")
CASES = [("O0", "true"), ("O0", "false"), ("O2", "true")]
BATCH = 4


def resolved(ranks: Ranks, *flags: str) -> TrainConfig:
    small = "-a toy_models:every_convolution --image-size 16 --num-classes 4 --device cpu --cpu-heap default"
    return resolve_config(parse([*small.split(), *flags]).config, CPU, ranks, None)[0]


def take(
    stepper: Stepper, group: Group, memory_format: torch.memory_format, first: int, steps: int
) -> list[dict[str, torch.Tensor]]:
    """Steps ``first`` and on, on images that depend on the step alone, each rank with its share of them;
    the gradients that each step ended with."""
    found: list[dict[str, torch.Tensor]] = []
    collect = stepper.precision.collect_gradients

    def watched() -> torch.Tensor:
        found.append({name: p.grad.clone() for name, p in stepper.model.named_parameters() if p.grad is not None})
        return collect()

    stepper.precision.collect_gradients = watched  # type: ignore[method-assign]
    total = 2 * BATCH
    size, rank = total // group.world_size, group.ranks.rank
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(total, 3, 16, 16, generator=generator)[rank * size : (rank + 1) * size]
        target = torch.randint(4, (total,), generator=generator)[rank * size : (rank + 1) * size]
        images = images.to(stepper.precision.input_dtype, memory_format=memory_format)
        batches = iter([(images, target)])
        timer = StepTimer(Clock(CPU), 0, 1)
        plan = StepPlan(total, (size,))
        stepper.step(step, plan, batches, 0.1, RunningSums(CPU), timer, StepProfiler(None, None, CPU))
    stepper.precision.collect_gradients = collect  # type: ignore[method-assign]
    return found


def other_strides(
    stepper: Stepper, memory_format: torch.memory_format, gradients: list[dict[str, torch.Tensor]]
) -> list[str]:
    """Names of the tensors whose strides are not those of the asked format, 1x1 weights included."""
    tensors = dict(stepper.model.named_parameters())
    tensors.update({f"{name}.grad": value for name, value in gradients[-1].items()})
    for index, (_, master) in enumerate(stepper.precision.masters):
        tensors[f"master {index}"] = master
    for index, parameter in enumerate(p for group in stepper.optimizer.param_groups for p in group["params"]):
        tensors[f"momentum {index}"] = stepper.optimizer.state[parameter]["momentum_buffer"]
    assert len(tensors) >= 30
    return [
        f"{name} {tuple(value.shape)} {value.stride()}"
        for name, value in tensors.items()
        if value.dim() == 4 and value.stride() != torch.empty(value.shape).to(memory_format=memory_format).stride()
    ]


def furthest(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    assert one.keys() == two.keys()
    return max(float((value.detach().float() - two[name].detach().float()).abs().max()) for name, value in one.items())


def try_case(group: Group, level: str, channels_last: str, folder: Path) -> dict[str, Any]:
    """Three steps on all ranks and in one process, a checkpoint, a fresh model that loads it, one more step."""
    config = resolved(group.ranks, "--opt-level", level, "--channels-last", channels_last)
    asked = resolve_memory_format(config.channels_last)
    stepper = build_stepper(config, group, True).stepper
    alone = build_stepper(config, one := Group(Ranks(), CPU), True).stepper
    gradients, expected = take(stepper, group, asked, 0, 3), take(alone, one, asked, 0, 3)
    found: dict[str, Any] = {
        "wrapped": type(stepper.wrapped).__name__,
        "gradient_distance": max(furthest(a, b) for a, b in zip(gradients, expected, strict=True)),
        "gradient_size": max(float(value.float().abs().max()) for value in expected[0].values()),
        "weight_distance": furthest(dict(stepper.model.named_parameters()), dict(alone.model.named_parameters())),
        "other_strides": other_strides(stepper, asked, gradients),
    }
    facts = {"config": {}, "resolved": {"num_classes": config.num_classes}}
    CheckpointSaver(folder if group.is_main else None, group, stepper, facts).save(Progress(), False)
    group.gather(0)  # the file is whole before the other rank reads it
    fresh = build_stepper(config, group, False).stepper
    restore(read_checkpoint(folder / "checkpoints/last.pt"), fresh, group)
    loaded = other_strides(fresh, asked, gradients)
    again, straight = take(fresh, group, asked, 3, 1), take(stepper, group, asked, 3, 1)
    found["other_strides_loaded"] = loaded + other_strides(fresh, asked, again)
    found["loaded_distance"] = furthest(again[0], straight[0])
    return found


def sentence(function: Any, *arguments: Any) -> list[Any]:
    """Of the UserError that a call ends in: its text, and whether rank 0 alone prints it."""
    try:
        function(*arguments)
    except UserError as error:
        return [str(error), error.on_every_rank]
    return ["no error", False]


def converted_after_wrapping() -> None:
    """What ``apply_to_model`` refuses, done by hand: gradients and buckets then differ in strides."""
    model = every_convolution(4)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    wrapped(torch.randn(4, 3, 16, 16)).sum().backward()


def caught(function: Any, *arguments: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = function(*arguments)
    return result, [str(warning.message) for warning in found]


def main(folder: Path) -> None:
    group = Group(read_ranks(), CPU, timeout_s=60.0)
    report: dict[str, Any] = {}
    for level, channels_last in CASES:
        name = f"{level} {channels_last}"
        place = folder / name
        (place / "checkpoints").mkdir(parents=True, exist_ok=True)
        report[name], report[name]["warnings"] = caught(try_case, group, level, channels_last, place)
    wrapped = DistributedDataParallel(every_convolution(4))
    report["refused"] = sentence(apply_to_model, wrapped, torch.channels_last)
    report["refused_inside"] = sentence(apply_to_model, nn.Sequential(nn.ReLU(), wrapped), torch.channels_last)
    report["sync_bn"] = sentence(resolved, group.ranks, "--sync-bn")
    # Last: torch warns of this once a process.
    _, report["control"] = caught(converted_after_wrapping)
    for rank, of_rank in enumerate(group.gather(report)):
        if group.is_main:
            (folder / f"rank{rank}.json").write_text(json.dumps(of_rank))
    group.close(agreed=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

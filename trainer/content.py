"""What goes into a checkpoint, and how a run goes on from one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.average import WeightAverage
from trainer.checkpoint import FORMAT
from trainer.distributed import Group
from trainer.errors import UserError
from trainer.host_copies import HostCopies
from trainer.memory_format import apply_to_optimizer_state, check_stride_orders
from trainer.optim import state_fits, zero_missing_momentum
from trainer.run_state import Progress
from trainer.step import Stepper
from trainer.weights import COUNTER


def snapshot_content(
    stepper: Stepper, progress: Progress, ranks: Sequence[tuple[dict[str, Tensor], list[float]]], copies: HostCopies
) -> dict[str, Any]:
    """The run's state as plain values and copies on the host, which training on does not touch.

    ``ranks``: every rank's generators (``rng_state``) and sums since the last logged step.
    """
    return {
        "format": FORMAT,
        "state_dict": stepper.precision.model_state(stepper.model, copies.take),
        "optimizer": optimizer_state(stepper, copies),
        "precision": stepper.precision.state_dict(),
        "ema": None if stepper.average is None else stepper.average.state(copies.take),
        **copy.deepcopy(vars(progress)),
        "window_sums": [window for _, window in ranks],
        "rng": [generators for generators, _ in ranks],
        "world_size": len(ranks),
    }


def restore(content: dict[str, Any], stepper: Stepper, group: Group) -> tuple[Progress, list[str]]:
    """Bring model, optimizer, scaler and generators to a checkpoint's state; returns the progress and notices."""
    notices: list[str] = []
    load_model(content, stepper)
    check_stride_orders(stepper.optimizer, stepper.precision.masters)
    if not load_optimizer_state(stepper, content.get("optimizer", {})):
        notices.append(
            "note: the file's optimizer state does not fit this optimizer and the model's parameters: momentum starts from zero"
        )
    stepper.precision.load_state_dict(content.get("precision", {}))
    if stepper.average is not None and not load_average(content, stepper.average):
        notices.append("note: the checkpoint holds no average of the weights: --model-ema starts from them")
    known = {key: content[key] for key in vars(Progress()) if key in content}
    progress = Progress(**known)
    progress.epoch_sums = list(progress.epoch_sums)
    progress.window_sums = _own_window(content.get("window_sums", []), group)
    if content.get("foreign"):
        progress.best_epoch = progress.epoch - 1 if progress.best_acc1 else -1
        notices.append(
            "note: a checkpoint of another script: it holds weights, epoch, best accuracy and optimizer, no loss scale and no random state"
        )
    elif not load_rng_state(content["rng"], group.ranks.rank, group.world_size, group.device):
        notices.append(
            f"note: saved on {content['world_size']} ranks, going on with {group.world_size}: the random state of dropout starts anew"
        )
    return progress, notices


def _own_window(windows: list[list[float]], group: Group) -> list[float]:
    """This rank's part of the sums since the last logged step; in another world rank 0 takes them all."""
    if len(windows) == group.world_size:
        return list(windows[group.ranks.rank])
    whole = [sum(column) for column in zip(*windows, strict=True)] if windows and group.is_main else []
    return whole or [0.0] * 4


def load_model(content: dict[str, Any], stepper: Stepper) -> None:
    """Weights alone; a file of another script may lack batch norm's count of batches, which nothing here reads."""
    own = stepper.model.state_dict()
    counts = {name: value for name, value in own.items() if name.endswith(COUNTER)}
    state = {**counts, **content["state_dict"]}
    other = [name for name in own if name not in state or _shape(own[name]) != _shape(state[name])]
    if other or len(state) != len(own):
        name = other[0] if other else next(name for name in state if name not in own)
        raise UserError(
            f"the checkpoint's weights do not fit this model ({name}): give its own --arch and --num-classes", True
        )
    stepper.precision.load_model_state(stepper.model, state)


def load_average(content: dict[str, Any], average: WeightAverage) -> bool:
    """The average in a file, or the weights just loaded where it holds none; False there."""
    state = content.get("ema")
    if state is None:
        average.restart()
    else:
        average.load(state)
    return state is not None


def _shape(value: Any) -> Any:
    return getattr(value, "shape", None)  # a module's extra state has none


def optimizer_state(stepper: Stepper, copies: HostCopies) -> dict[int, dict[str, Any]]:
    """The optimizer's state by position of the parameter in the model, however it is grouped: float32, contiguous,
    on the CPU."""
    state = stepper.optimizer.state
    return {
        index: {key: copies.take(f"optimizer {index} {key}", value) for key, value in state[parameter].items()}
        for index, parameter in enumerate(stepper.precision.stepped)
        if parameter in state
    }


def load_optimizer_state(stepper: Stepper, state: dict[int, dict[str, Any]]) -> bool:
    """Load what ``optimizer_state`` or another script's file holds; False where it does not fit.

    Hyperparameters stay the flags', dtype and memory format the parameters'.
    """
    optimizer, parameters = stepper.optimizer, stepper.precision.stepped
    if any(
        index >= len(parameters) or not state_fits(optimizer, parameters[index], entry)
        for index, entry in state.items()
    ):
        return False
    places = {id(parameter): index for index, parameter in enumerate(parameters)}
    grouped = [places[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    by_group = {place: state[index] for place, index in enumerate(grouped) if index in state}
    optimizer.load_state_dict({"state": by_group, "param_groups": optimizer.state_dict()["param_groups"]})
    zero_missing_momentum(optimizer)
    apply_to_optimizer_state(optimizer)
    check_stride_orders(optimizer)
    return True


def rng_state(device: torch.device) -> dict[str, Tensor]:
    """Generators of this rank."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def load_rng_state(states: list[dict[str, Tensor]], rank: int, world_size: int, device: torch.device) -> bool:
    """Bring this rank's generators back; False where the file holds those of another world."""
    if len(states) != world_size:
        return False
    torch.set_rng_state(states[rank]["cpu"])
    if device.type == "cuda" and "cuda" in states[rank]:
        torch.cuda.set_rng_state(states[rank]["cuda"], device)
    return True

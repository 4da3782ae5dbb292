"""Checkpoints: written whole or not at all, read without running code, free of DDP's prefix.

A file holds plain types and contiguous float32 tensors, so that it loads anywhere with
``torch.load(weights_only=True)``.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.errors import UserError
from trainer.memory_format import apply_to_optimizer_state, check_stride_orders
from trainer.optim import zero_missing_momentum
from trainer.tensor_file import TensorFileError, read_tensor_file
from trainer.weights import strip_prefixes

FORMAT = 1
# What every file of ours holds, beside weights and format.
_PARTS = {
    "config": dict, "resolved": dict, "optimizer": dict, "precision": dict, "rng": list, "epoch": int, "step": int,
}  # fmt: skip


def write_checkpoint(path: Path, content: dict[str, Any], also: Path | None = None) -> None:
    """Write to a temporary file beside ``path``, fsync it, rename it, fsync the folder.

    ``also``: a second name for the same bytes, in the same folder; set first, so that ``path`` never
    tells of a best epoch that is not there.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as stream:
            torch.save(content, stream)
            stream.flush()
            os.fsync(stream.fileno())
        if also is not None:
            _link(temporary, also)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _link(source: Path, target: Path) -> None:
    """The same file under a second name: no second write. Both names are only ever replaced, never written into."""
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)


def read_checkpoint(path: Path, flag: str = "--resume ") -> dict[str, Any]:
    """A checkpoint of ours, of apex's main_amp.py or of pytorch/examples, on the CPU.

    Those of the other two become ours with what they hold: weights, epoch, best accuracy, optimizer.
    ``flag``: what the path was given to, for messages. Raises UserError for a missing or unreadable file.
    """
    if not path.is_file():
        raise UserError(f"{flag}{path}: no such file{_nearby(path)}")
    try:
        content = read_tensor_file(path)
    except TensorFileError as error:
        raise UserError(f"{flag}{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise UserError(f"{flag}{path} is no checkpoint: it has no state_dict (for bare weights take --weights)")
    if "format" not in content:
        return _from_elsewhere(content)
    lacking = [key for key, kind in _PARTS.items() if not isinstance(content.get(key), kind)]
    if lacking or not isinstance(content["format"], int):
        raise UserError(
            f"{flag}{path} is no whole checkpoint of ours: it lacks {', '.join(lacking) or 'a format number'}"
        )
    if content["format"] > FORMAT:
        raise UserError(f"{flag}{path} was written by a newer version of this script (format {content['format']})")
    return content


def _from_elsewhere(content: dict[str, Any]) -> dict[str, Any]:
    best = content.get("best_prec1", content.get("best_acc1", 0.0))
    arch = content.get("arch")
    return {
        "format": FORMAT,
        "foreign": True,
        "config": {"arch": arch} if isinstance(arch, str) else {},
        "resolved": {},
        "state_dict": strip_prefixes(content["state_dict"]),
        "optimizer": (content.get("optimizer") or {}).get("state", {}),
        "epoch": int(content.get("epoch", 0)),
        "best_acc1": float(best),
    }


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """The optimizer's state by position of the parameter: float32, contiguous, on the CPU."""
    state = optimizer.state_dict()["state"]
    return {index: {key: _for_file(value) for key, value in entry.items()} for index, entry in state.items()}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Any]]) -> bool:
    """Load what ``optimizer_state`` or another script's file holds; False where it does not fit.

    Hyperparameters stay the flags', dtype and memory format the parameters'.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entry in state.items():
        buffer = entry.get("momentum_buffer")
        if index >= len(parameters) or (isinstance(buffer, Tensor) and buffer.shape != parameters[index].shape):
            return False
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
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


def _for_file(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.detach().float() if value.is_floating_point() else value.detach()
    return value.to("cpu", copy=True).contiguous()


def _nearby(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" (and no folder {folder})"
    names = sorted(
        str(found)
        for pattern in ("*.pt", "*.pth*", "*/checkpoints/*.pt", "checkpoints/*.pt")
        for found in folder.glob(pattern)
    )
    return f"; nearby: {', '.join(names[:6])}" if names else f"; {folder} holds no checkpoint"

"""A checkpoint as a model in evaluation mode, with what its input must be: what export_weights.py and predict.py share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainer.checkpoint import read_checkpoint
from trainer.errors import UserError
from trainer.models import build_model
from trainer.weights import load_matching


@dataclass(frozen=True)
class SavedModel:
    """``state``: the weights by name; ``model``: float32, contiguous, on the CPU; ``resolved``: the run's settings."""

    arch: str
    model: nn.Module
    state: dict[str, Tensor]
    classes: list[str]
    resolved: dict[str, Any]
    content: dict[str, Any]


def load_saved_model(path: Path, ema: bool = False) -> SavedModel:
    """Read a checkpoint of ours and build its model. Raises UserError.

    Its ``arch`` may be package.module:factory, which is imported from the current folder or PYTHONPATH.
    """
    content = read_checkpoint(path, flag="")
    if content.get("foreign"):
        raise UserError(f"{path} is a checkpoint of another script, which says nothing of classes and input")
    state = content["state_dict"]
    if ema:
        average = content.get("ema")
        if average is None:
            raise UserError(f"--ema: {path} holds no averaged weights (of a run with --model-ema)")
        state = average["state_dict"]
    arch, classes = str(content["config"].get("arch")), [str(name) for name in content.get("classes", ())]
    model = build_model(arch, content["resolved"]["num_classes"])
    load_matching(model, state, new_head=False)
    return SavedModel(arch, model.eval(), state, classes, content["resolved"], content)

"""Architecture name -> nn.Module, weights and what they were trained with, and the training loss."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer.errors import UserError

# Weight of each auxiliary head's loss: 0.4 in Inception v3's and 0.3 in GoogLeNet's published training.
_AUX_WEIGHTS = {"InceptionOutputs": 0.4, "GoogLeNetOutputs": 0.3}
# Their named weights were made for images in -1..1.
_MINUS_ONE_TO_ONE = ("googlenet", "inception_v3")


@dataclass(frozen=True)
class Preset:
    """Input that weights were made for: sizes in pixels, means and deviations in 0..1."""

    crop_size: int | None = None
    resize_size: int | None = None
    interpolation: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def preset_of(arch: str, pretrained: bool, weights: str | None) -> Preset:
    """The metadata of named weights; empty for a file or none. Downloads nothing."""
    if arch.startswith("timm:"):
        return _timm_preset(arch) if pretrained or _is_name(weights) else Preset()
    named = _torchvision_weights(arch, pretrained, weights)
    if named is None:
        return Preset()
    transform = named.transforms()
    # torchvision sets `transform_input` in these two: ImageNet's means and deviations undone inside the model.
    halves = (0.5, 0.5, 0.5) if arch in _MINUS_ONE_TO_ONE else None
    return Preset(
        crop_size=transform.crop_size[0],
        resize_size=transform.resize_size[0],
        interpolation=transform.interpolation.value,
        mean=halves or tuple(transform.mean),
        std=halves or tuple(transform.std),
    )


def build_model(arch: str, num_classes: int) -> nn.Module:
    """A new model with random weights, on the CPU, contiguous, float32. Raises UserError for an unknown name."""
    if arch.startswith("timm:"):
        return _from_timm(arch, num_classes)
    if ":" in arch:
        return _from_factory(arch, num_classes)
    from torchvision import models

    if arch not in models.list_models(module=models):
        raise UserError(f"no architecture {arch!r} in torchvision{_nearest_arch(arch)}", True)
    # googlenet and inception_v3 warn unless told how to initialise.
    extra = {"init_weights": True} if arch in _MINUS_ONE_TO_ONE else {}
    return models.get_model(arch, weights=None, num_classes=num_classes, **extra)


def load_weights(model: nn.Module, arch: str, pretrained: bool, weights: str | None) -> str | None:
    """Load named weights or a file into ``model``; returns a line for the log, None where there is nothing to load.

    A head of another class count keeps its fresh weights, and the line says so.
    """
    if weights is not None and not _is_name(weights):
        state, source = weights_from_file(weights), weights
    elif arch.startswith("timm:") and pretrained:
        return f"=> pre-trained weights of {arch}: {_load_timm(model, arch)}"
    else:
        named = _torchvision_weights(arch, pretrained, weights)
        if named is None:
            return None
        state, source = _state_of_named(arch, named), str(named)
    return f"=> using pre-trained model '{arch}' ({source}): {load_matching(model, state)}"


def load_matching(model: nn.Module, state: dict[str, Tensor]) -> str:
    """Load every tensor, the classifier's apart where only its class count differs; says which."""
    own = model.state_dict()
    # Batch norm's count of batches came late: old files lack it, and nothing here reads it.
    missing = sorted(name for name in set(own) - set(state) if not name.endswith(".num_batches_tracked"))
    foreign = sorted(set(state) - set(own))
    if missing or foreign:
        names = ", ".join((missing or foreign)[:3])
        kind = "lacks" if missing else "holds unknown"
        raise UserError(f"these weights do not fit the model: the file {kind} {names}", True)
    other = [name for name in own if name in state and own[name].shape != state[name].shape]
    heads = [name for name in other if own[name].shape[1:] == state[name].shape[1:]]
    if heads != other or len({name.rpartition(".")[0] for name in heads}) > 3:
        raise UserError(
            f"these weights do not fit the model: {other[0]} has shape {tuple(state[other[0]].shape)}", True
        )
    # Into the model's own state dict: it carries the modules' versions, without which mnasnet refuses to load.
    own.update({name: value for name, value in state.items() if name not in other})
    model.load_state_dict(own)
    return f"the head is new ({', '.join(other)}), the rest is loaded" if other else "all weights loaded"


def weights_from_file(path: str) -> dict[str, Tensor]:
    """The state dict in a file: bare, under ``state_dict`` or ``model``, with or without a ``module.`` prefix."""
    if not os.path.isfile(path):
        raise UserError(f"--weights {path}: neither a file nor the name of weights of this architecture", True)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"--weights {path} is no readable weights file: {' '.join(str(error).split())[:200]}", True
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"--weights {path} holds no state dict", True)
    return strip_prefixes(content)


def strip_prefixes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the ``module.`` of DistributedDataParallel and the ``_orig_mod.`` of torch.compile."""
    for prefix in ("module.", "_orig_mod.", "module."):
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


class TrainingLoss(nn.Module):
    """Cross-entropy in float32 of the main output, plus weighted auxiliary outputs where a model has them."""

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, output: Any, target: Tensor) -> Tensor:
        loss = self._one(main_output(output), target)
        weight = _AUX_WEIGHTS.get(type(output).__name__, 0.0)
        for auxiliary in output[1:] if weight else ():
            if auxiliary is not None:
                loss = loss + weight * self._one(auxiliary, target)
        return loss

    def _one(self, logits: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.float(), target, label_smoothing=self.label_smoothing)


def main_output(output: Any) -> Tensor:
    """The logits (N, classes) of a model that may return more than them."""
    return output if isinstance(output, Tensor) else output[0]


def _torchvision_weights(arch: str, pretrained: bool, weights: str | None) -> Any:
    if not pretrained and not _is_name(weights):
        return None
    if ":" in arch:
        raise UserError(f"{arch} has no named weights: give --weights a file", True)
    from torchvision import models

    if arch not in models.list_models(module=models):
        return None  # build_model says it better
    choices = models.get_model_weights(arch)
    name = weights or "DEFAULT"
    if name not in choices.__members__:
        raise UserError(f"--weights {name}: neither a file nor one of {', '.join(choices.__members__)}", True)
    return choices[name]


def _state_of_named(arch: str, named: Any) -> dict[str, Tensor]:
    """Through torchvision's own loader, which knows the old names in some files (densenet's)."""
    from torchvision import models

    extra = {"aux_logits": True} if arch == "googlenet" else {}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="auxiliary heads in the pretrained")
        return models.get_model(arch, weights=named, progress=False, **extra).state_dict()


def _is_name(weights: str | None) -> bool:
    return weights is not None and not os.path.exists(weights) and "/" not in weights and not Path(weights).suffix


def _from_factory(arch: str, num_classes: int) -> nn.Module:
    module_name, _, factory_name = arch.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise UserError(f"--arch {arch}: {module_name!r} is no module name; it takes package.module:factory", True)
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(1, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(f"--arch {arch}: no module {error.name!r} in {folder} or on PYTHONPATH", True) from error
        raise
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise UserError(
            f"--arch {arch}: {getattr(module, '__file__', None) or module_name} has no function {factory_name!r}", True
        )
    model = factory(num_classes=num_classes)
    if not isinstance(model, nn.Module):
        raise UserError(f"--arch {arch} returned a {type(model).__name__}, not a torch.nn.Module", True)
    return model


def _timm() -> Any:
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise UserError("--arch timm:NAME needs the package timm: pip install timm", True) from error


def _from_timm(arch: str, num_classes: int) -> nn.Module:
    timm, name = _timm(), arch.removeprefix("timm:")
    if ":" not in name and not timm.is_model(name):  # hf-hub:NAME and its like are timm's to judge
        raise UserError(f"no architecture {name!r} in timm {timm.__version__}", True)
    return timm.create_model(name, num_classes=num_classes)


def _timm_preset(arch: str) -> Preset:
    meta = _timm().models.get_pretrained_cfg(arch.removeprefix("timm:"))
    if meta is None:
        return Preset()
    crop = meta.input_size[-1]
    return Preset(crop, round(crop / meta.crop_pct), meta.interpolation, tuple(meta.mean), tuple(meta.std))


def _load_timm(model: nn.Module, arch: str) -> str:
    return load_matching(model, _timm().create_model(arch.removeprefix("timm:"), pretrained=True).state_dict())


def _nearest_arch(arch: str) -> str:
    import difflib

    from torchvision import models

    close = difflib.get_close_matches(arch, models.list_models(module=models), n=3)
    return (
        f"; did you mean {', '.join(close)}?" if close else "; --arch also takes timm:NAME and package.module:factory"
    )

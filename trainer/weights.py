"""Named weights and weights files: the input they were made for, and loading them."""

from __future__ import annotations

import functools
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainer.errors import UserError
from trainer.models import WITH_AUX, timm_package
from trainer.tensor_file import TensorFileError, read_tensor_file

COUNTER = ".num_batches_tracked"


@dataclass(frozen=True)
class Preset:
    """Input that weights were made for: sizes in pixels, means and deviations in 0..1."""

    crop_size: int | None = None
    resize_size: int | None = None
    interpolation: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    num_classes: int | None = None  # of a checkpoint of ours


def preset_of(arch: str, pretrained: bool, weights: str | None) -> Preset:
    """What named weights, or a checkpoint of ours, were made for; empty for other files or none. Downloads nothing."""
    if weights is not None and not _is_name(weights):
        return _preset_of_file(weights)
    if arch.startswith("timm:"):
        return _timm_preset(arch) if pretrained or _is_name(weights) else Preset()
    named = _torchvision_weights(arch, pretrained, weights)
    if named is None:
        return Preset()
    transform = named.transforms()
    # torchvision sets `transform_input` in these two: ImageNet's means and deviations undone inside the model.
    halves = (0.5, 0.5, 0.5) if arch in WITH_AUX else None
    return Preset(
        crop_size=transform.crop_size[0],
        resize_size=transform.resize_size[0],
        interpolation=transform.interpolation.value,
        mean=halves or tuple(transform.mean),
        std=halves or tuple(transform.std),
    )


def load_weights(
    model: nn.Module, arch: str, pretrained: bool, weights: str | None, new_head: bool = True
) -> str | None:
    """Load named weights or a file into ``model``; returns a line for the log, None where there is nothing to load.

    A head of another class count keeps its fresh weights, and the line says so; without ``new_head``
    (an evaluation) that is a UserError.
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
    return f"=> using pre-trained model '{arch}' ({source}): {load_matching(model, state, new_head, f'the weights of {source}')}"


def load_matching(
    model: nn.Module, state: dict[str, Tensor], new_head: bool = True, what: str = "these weights"
) -> str:
    """Load every tensor, the classifier's apart where only its class count differs; says which. ``what``: their name in
    an error."""
    own = model.state_dict()
    # Batch norm's count of batches came late: old files lack it, and nothing here reads it.
    missing = sorted(name for name in set(own) - set(state) if not name.endswith(COUNTER))
    foreign = sorted(set(state) - set(own))
    if missing or foreign:
        names = missing or foreign
        more = f" and {len(names) - 3} more" if names[3:] else ""
        kind = "lacks" if missing else "holds unknown"
        raise UserError(f"{what} do not fit the model: the file {kind} {', '.join(names[:3])}{more}", True)
    tensors = {name: value for name, value in own.items() if isinstance(value, Tensor)}
    other = [name for name in tensors if name in state and own[name].shape != state[name].shape]
    heads = [name for name in other if own[name].shape[1:] == state[name].shape[1:]]
    if heads != other or len({name.rpartition(".")[0] for name in heads}) > 3:
        raise UserError(f"{what} do not fit the model: {other[0]} has shape {tuple(state[other[0]].shape)}", True)
    if other and not new_head:
        count = state[other[0]].shape[0]
        raise UserError(
            f"these weights have {count} classes, the model {own[other[0]].shape[0]}: an untrained head says nothing; give --num-classes {count}",
            True,
        )
    # Into the model's own state dict: it carries the modules' versions, without which mnasnet refuses to load.
    own.update({name: value for name, value in state.items() if name not in other})
    model.load_state_dict(own)
    return f"the head is new ({', '.join(other)}), the rest is loaded" if other else "all weights loaded"


def weights_from_file(path: str) -> dict[str, Tensor]:
    """The state dict in a file: bare, under ``state_dict`` or ``model``, with or without a ``module.`` prefix."""
    content = _read_file(path)
    _read_file.cache_clear()
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"--weights {path} holds no state dict", True)
    return strip_prefixes(content)


@functools.lru_cache(maxsize=1)  # read once for the preset and the tensors
def _read_file(path: str) -> Any:
    if not os.path.isfile(path):
        raise UserError(f"--weights {path}: neither a file nor the name of weights of this architecture", True)
    try:
        return read_tensor_file(path)
    except TensorFileError as error:
        raise UserError(f"--weights {path} is no readable weights file: {error}", True) from error


def _preset_of_file(path: str) -> Preset:
    content = _read_file(path)
    resolved = content.get("resolved") if isinstance(content, dict) else None
    if not isinstance(resolved, dict) or "val_image_size" not in resolved:
        return Preset()
    keys = ("val_image_size", "val_resize", "interpolation", "mean", "std", "num_classes")
    return Preset(*(resolved.get(key) for key in keys))


def strip_prefixes(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the ``module.`` of DistributedDataParallel and the ``_orig_mod.`` of torch.compile."""
    for prefix in ("module.", "_orig_mod.", "module."):
        if state and all(name.startswith(prefix) for name in state):
            state = {name.removeprefix(prefix): value for name, value in state.items()}
    # pytorch/examples wraps the features of alexnet and vgg alone.
    return {name.replace("features.module.", "features.", 1): value for name, value in state.items()}


def _torchvision_weights(arch: str, pretrained: bool, weights: str | None) -> Any:
    if not pretrained and not _is_name(weights):
        return None
    if ":" in arch:
        raise UserError(f"{arch} has no named weights: give --weights a file", True)
    from torchvision import models

    if arch not in models.list_models(module=models):
        return None  # build_model says it better
    choices = models.get_model_weights(arch)
    name = (weights or "DEFAULT").removeprefix(f"{choices.__name__}.")
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
    """IMAGENET1K_V2, or ResNet50_Weights.IMAGENET1K_V2 as torchvision's reference spells it; else it is a path."""
    if weights is None or os.path.exists(weights):
        return False
    return bool(re.fullmatch(r"\w+_Weights\.\w+", weights)) or ("/" not in weights and not Path(weights).suffix)


def _timm_preset(arch: str) -> Preset:
    meta = timm_package().models.get_pretrained_cfg(arch.removeprefix("timm:"))
    if meta is None:
        return Preset()
    crop = meta.input_size[-1]
    return Preset(crop, round(crop / meta.crop_pct), meta.interpolation, tuple(meta.mean), tuple(meta.std))


def _load_timm(model: nn.Module, arch: str) -> str:
    return load_matching(model, timm_package().create_model(arch.removeprefix("timm:"), pretrained=True).state_dict())

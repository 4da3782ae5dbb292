"""Architecture name -> nn.Module, and the training loss."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from trainer.errors import UserError

# Weight of each auxiliary head's loss: 0.4 in Inception v3's and 0.3 in GoogLeNet's published training.
_AUX_WEIGHTS = {"InceptionOutputs": 0.4, "GoogLeNetOutputs": 0.3}
WITH_AUX = ("googlenet", "inception_v3")


def build_model(arch: str, num_classes: int, stochastic_depth: float | None = None) -> nn.Module:
    """A new model with random weights, on the CPU, contiguous, float32. Raises UserError for an unknown name, and for
    a ``stochastic_depth`` (probability of leaving out a block, arXiv:1603.09382) that the model does not take."""
    if stochastic_depth is None:
        return _build(arch, num_classes, {})
    key = "drop_path_rate" if arch.startswith("timm:") else "stochastic_depth_prob"
    try:
        return _build(arch, num_classes, {key: stochastic_depth})
    except TypeError as error:
        if key not in str(error):
            raise
        raise UserError(f"--stochastic-depth: {arch} takes no {key}; drop the flag", True) from error


def _build(arch: str, num_classes: int, options: dict[str, float]) -> nn.Module:
    if arch.startswith("timm:"):
        return _from_timm(arch, num_classes, options)
    if ":" in arch:
        return _from_factory(arch, num_classes, options)
    from torchvision import models

    if arch not in models.list_models(module=models):
        raise UserError(f"no architecture {arch!r} in torchvision{_nearest_arch(arch)}", True)
    # googlenet and inception_v3 warn unless told how to initialise.
    extra = {"init_weights": True} if arch in WITH_AUX else {}
    return models.get_model(arch, weights=None, num_classes=num_classes, **extra, **options)


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
    """The logits (N, classes) of a model that may return more than them. Raises UserError where they do not come first."""
    try:
        first = output if isinstance(output, Tensor) else output[0]
    except (LookupError, TypeError):
        first = None
    if not isinstance(first, Tensor):
        what = f"a {type(output).__name__}" if output is not None else "nothing"
        if isinstance(output, dict):
            what += f" with {', '.join(map(repr, output)) or 'no keys'}"
        raise UserError(
            f"the model returned {what}: its forward() has to return the logits as a tensor, or as the first of a tuple",
            True,
        )
    return first


def _from_factory(arch: str, num_classes: int, options: dict[str, float]) -> nn.Module:
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
    if not _takes_num_classes(factory):
        raise UserError(
            f"--arch {arch}: {factory_name} is called as {factory_name}(num_classes=N), which it does not take", True
        )
    model = factory(num_classes=num_classes, **options)
    if not isinstance(model, nn.Module):
        raise UserError(f"--arch {arch} returned a {type(model).__name__}, not a torch.nn.Module", True)
    for name, parameter in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(parameter):
            raise UserError(
                f"--arch {arch}: {name} has no shape yet, its layer is a lazy one: call the model on one batch of images "
                "in the factory before returning it",
                True,
            )
    wrapper = _parallel_wrapper(model)
    if wrapper:
        raise UserError(
            f"--arch {arch} returned a model {wrapper}: return the plain module, train.py sets its memory format and "
            "spreads it over ranks itself, with DistributedDataParallel alone (docs/scale_out.md)",
            True,
        )
    return model


def _takes_num_classes(factory: Any) -> bool:
    """Asked of the signature, so that a TypeError raised inside a factory stays its own."""
    try:
        inspect.signature(factory).bind(num_classes=1)
    except TypeError:
        return False
    except ValueError:  # written in C: no signature to ask
        return True
    return True


def _parallel_wrapper(model: nn.Module) -> str | None:
    """What a model was spread over ranks with, None for a plain one.

    A class whose module nobody has imported can have no instance: looking there imports nothing (half a second).
    """
    kinds = [
        (
            "torch.distributed.fsdp",
            "FSDPModule",
            "sharded by FSDP2 (fully_shard), which takes contiguous parameters only",
        ),
        ("torch.distributed.fsdp", "FullyShardedDataParallel", "wrapped in FullyShardedDataParallel"),
        ("torch.nn.parallel", "DistributedDataParallel", "wrapped in DistributedDataParallel"),
    ]
    for module in model.modules():
        for package, name, what in kinds:
            if isinstance(module, getattr(sys.modules.get(package), name, ())):
                return what
    dtensor = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())
    sharded = any(isinstance(parameter, dtensor) for parameter in model.parameters())
    return "whose parameters are DTensors" if sharded else None


def timm_package() -> Any:
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise UserError("--arch timm:NAME needs the package timm: pip install timm", True) from error


def _from_timm(arch: str, num_classes: int, options: dict[str, float]) -> nn.Module:
    timm, name = timm_package(), arch.removeprefix("timm:")
    if ":" not in name and not timm.is_model(name):  # hf-hub:NAME and its like are timm's to judge
        raise UserError(f"no architecture {name!r} in timm {timm.__version__}", True)
    return timm.create_model(name, num_classes=num_classes, **options)


def _nearest_arch(arch: str) -> str:
    import difflib

    from torchvision import models

    close = difflib.get_close_matches(arch, models.list_models(module=models), n=3)
    return (
        f"; did you mean {', '.join(close)}?" if close else "; --arch also takes timm:NAME and package.module:factory"
    )

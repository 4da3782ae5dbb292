"""Which modules of a model draw other random numbers in another arm of a comparison, though nothing is wrong.

``nn.Dropout`` fills its mask in the order of memory. Over a 4-D tensor the same random numbers therefore meet
other elements in channels-last than in contiguous format, and the losses of the two part from the first step on.
Compiled code and another device draw from generators of their own, for every module that draws.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

# One number a channel, drawn into an (N, C, 1, 1) mask of its own: the same in every format.
_BY_CHANNEL = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)


def drawing_modules(model: nn.Module) -> list[str]:
    """Names of the modules that draw random numbers in a training step: dropouts, and stochastic depth by its names
    in torchvision and timm. Calls of functions are not seen."""
    return [name for name, module in model.named_modules() if module.training and _draws(module)]


def _draws(module: Any) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return 0 < module.p < 1
    share = {"StochasticDepth": "p", "DropPath": "drop_prob"}.get(type(module).__name__)
    return bool(share and getattr(module, share, 0))


def watch_dropout(model: nn.Module) -> list[str]:
    """Names of such modules, empty now and filled by each one's first call; after it the model is as it was.

    Calls of ``torch.nn.functional.dropout`` are not seen.
    """
    found: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and not isinstance(module, _BY_CHANNEL):
            _watch(module, name, found)
    return found


def _watch(module: Any, name: str, found: list[str]) -> None:
    def first(module: Any, inputs: tuple[Any, ...]) -> None:
        handle.remove()
        if module.training and 0 < module.p < 1 and _has_an_order(inputs[0]):
            found.append(name)

    handle = module.register_forward_pre_hook(first)


def _has_an_order(images: Tensor) -> bool:
    """Whether channels-last and contiguous are two different orders of this shape."""
    return images.dim() == 4 and images.shape[1] > 1 and images.shape[2] * images.shape[3] > 1

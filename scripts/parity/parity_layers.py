"""One step in which every layer is given another step's values, so that each layer is compared on its own.

Two free steps cannot be compared layer by layer: a rounding error of one layer flips the sign of a ReLU in the next
ones, and that grows with depth (two float32 formats of resnet50 end some per cent apart, bfloat16 ones as far apart as
random vectors). So the first step is recorded: what every layer (module without children) got, gave, and got back as
the gradient of its output. In the second step each layer's output, and the gradient that comes back to it, are compared
with the recorded ones and then replaced by them. What is between layers is compared as the next layer's input.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

Key = tuple[str, int, str]  # layer, number of its call, what

# A gradient below this share of the largest one is compared with that share instead of with itself.
FLOOR = 1e-3
FLOOR_OF_MODULE = 0.1  # and below this share of all gradients of its module


@dataclass(frozen=True)
class Difference:
    """``value``: relative L2, infinite where a number is not finite."""

    name: str
    what: str  # input, output, output gradient, gradient, buffer, logits, loss
    value: float


def distance(one: Tensor, other: Tensor) -> float:
    """L2 norm of the difference of two tensors of one shape."""
    return torch.linalg.vector_norm(_wide(one) - _wide(other)).item()


def norm(tensor: Tensor) -> float:
    return torch.linalg.vector_norm(_wide(tensor)).item()


def whole_norm(tensors: Iterable[Tensor]) -> float:
    """L2 norm of all of them as one vector."""
    return math.sqrt(sum(norm(tensor) ** 2 for tensor in tensors))


def _wide(tensor: Tensor) -> Tensor:
    """In float64, which Apple's GPUs lack."""
    return tensor.detach().to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def relative(one: Tensor, baseline: Tensor, floor: float = 0.0) -> float:
    """``|one - baseline| / max(|baseline|, floor)``; 0 where nothing differs, infinite where it is not finite."""
    if one.shape != baseline.shape:
        return float("inf")
    apart = distance(one, baseline)
    if apart == 0:
        return 0.0
    value = apart / max(norm(baseline), floor, 1e-30)
    return value if value == value else float("inf")


class Recorder:
    """Keeps a copy of what passes."""

    def __init__(self) -> None:
        self.values: dict[Key, Tensor] = {}

    def see(self, key: Key, value: Tensor) -> Tensor:
        self.values[key] = value.detach().clone()
        return value.clone()


class Forcer:
    """Compares what passes with a record and puts the record in its place; strides and dtype stay as they came."""

    def __init__(self, record: dict[Key, Tensor]) -> None:
        self._record = record
        # The floor of gradients: of an output that the loss hardly depends on only rounding is left.
        gradients = [norm(value) for key, value in record.items() if key[2] == "output gradient"]
        self._floor = FLOOR * max(gradients, default=0.0)
        self.differences: list[Difference] = []

    def see(self, key: Key, value: Tensor) -> Tensor:
        recorded = self._record.get(key)
        floor = self._floor if key[2] == "output gradient" else 0.0
        apart = float("inf") if recorded is None else relative(value, recorded, floor)
        self.differences.append(Difference(key[0] + (f", call {key[1] + 1}" if key[1] else ""), key[2], apart))
        if recorded is None or recorded.shape != value.shape:
            return value.clone()
        return torch.empty_like(value).copy_(recorded)


class _Tap(torch.autograd.Function):
    """Shows the output on its way forward, and its gradient on the way back, to a recorder or forcer."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, watcher: Any, layer: str, call: int) -> Tensor:
        ctx.seen = watcher, layer, call
        return watcher.see((layer, call, "output"), output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        watcher, layer, call = ctx.seen
        return watcher.see((layer, call, "output gradient"), gradient), None, None, None


@contextlib.contextmanager
def watched(model: nn.Module, watcher: Recorder | Forcer | None) -> Iterator[None]:
    """``watcher`` sees all layers of ``model``; None: nothing is watched. Dropout draws alike in every memory format."""
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, _DropoutNd):
            handles += _draw_in_one_order(module)
        if watcher is not None and not list(module.children()):
            before, after = _hooks(name or "model", watcher)
            handles += [module.register_forward_pre_hook(before), module.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hooks(layer: str, watcher: Recorder | Forcer) -> tuple[Callable[..., Any], Callable[..., Any]]:
    calls: Counter[str] = Counter()  # a ReLU may serve in several places

    def before(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and _is_real(inputs[0]):
            watcher.see((layer, calls["begun"], "input"), inputs[0])
        calls["begun"] += 1

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
        calls["ended"] += 1
        return _Tap.apply(output, watcher, layer, calls["ended"] - 1) if _is_real(output) else None

    return before, after


def _draw_in_one_order(module: nn.Module) -> list[Any]:
    """Dropout fills its mask in the order of memory: other elements in another memory format, which is no error."""
    formats: list[bool] = []

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        formats.append(inputs[0].dim() == 4 and not inputs[0].is_contiguous())
        return inputs[0].contiguous(), *inputs[1:]

    def after(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output.to(memory_format=torch.channels_last) if formats.pop() else output

    return [module.register_forward_pre_hook(before), module.register_forward_hook(after)]


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()

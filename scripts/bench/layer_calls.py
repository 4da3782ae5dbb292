"""Which modules of a model are called with 4-D input, on what shapes, read off one real forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from trainer.levels import dtype_name
from trainer.memory_format import stride_order

NHWC = (0, 2, 3, 1)
_PLAIN = (bool, int, float, str, tuple, type(None), torch.dtype)


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be made anew: random floats, or ``value`` itself for whole numbers and the like."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    value: Tensor | None = field(default=None, compare=False)

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        value = None if tensor.is_floating_point() else tensor.detach().clone()
        return cls(tuple(tensor.shape), tensor.dtype, tensor.requires_grad, value)

    def make(self, device: torch.device, memory_format: torch.memory_format) -> Tensor:
        """On the device, without gradient; the format is for 4-D tensors."""
        tensor = torch.randn(self.shape).to(device, self.dtype) if self.value is None else self.value.to(device)
        return tensor.to(memory_format=memory_format) if tensor.dim() == 4 else tensor

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))} {dtype_name(self.dtype)}"


def map_leaves(function: Callable[[Any], Any], content: Any) -> Any:
    """The same nest of lists, tuples and dicts, ``function`` applied to what is in it."""
    if isinstance(content, dict):
        return {key: map_leaves(function, value) for key, value in content.items()}
    if type(content) in (list, tuple):
        return type(content)(map_leaves(function, value) for value in content)
    return function(content)


def leaves_of(content: Any, kind: type) -> list[Any]:
    """Every ``kind`` inside nested lists, tuples (named ones too) and dicts."""
    if isinstance(content, kind):
        return [content]
    inside = content.values() if isinstance(content, dict) else content if isinstance(content, (list, tuple)) else ()
    return [leaf for value in inside for leaf in leaves_of(value, kind)]


@dataclass
class LayerCase:
    """Calls that are alike: same type, settings, weights' shapes, inputs and contexts. ``names``: a module a call.

    ``met``: those of them whose 4-D inputs all lay channels-last in the channels-last model.
    """

    key: tuple[Any, ...]
    module: str
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    grad: bool
    autocast: bool
    names: list[str] = field(default_factory=list)
    met: int = 0

    @property
    def shapes(self) -> str:
        return " + ".join(map(str, leaves_of(self.inputs, TensorSpec)))

    @property
    def label(self) -> str:
        """The first module, and how many calls are like its."""
        return self.names[0] + (f" (+{len(self.names) - 1})" if len(self.names) > 1 else "")


class CallRecorder:
    """Hooks on every module; keeps the calls that hold no other call and have a 4-D input, grouped."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.cases: dict[tuple[Any, ...], LayerCase] = {}
        self._device = device
        self._open: list[dict[str, Any]] = []
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no such hooks
            self._handles.append(module.register_forward_pre_hook(self._entering(name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leaving))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            for above in self._open[-1:]:
                above["holds_calls"] = True
            # Looked at before the call: an in-place module changes its input.
            images = [tensor for tensor in leaves_of((args, kwargs), Tensor) if tensor.dim() == 4]
            specs = map_leaves(lambda leaf: TensorSpec.of(leaf) if isinstance(leaf, Tensor) else leaf, (args, kwargs))
            met = all(stride_order(t) == tuple(d for d in NHWC if t.shape[d] > 1) for t in images)
            context = (torch.is_grad_enabled(), torch.is_autocast_enabled(self._device.type))
            self._open.append({"name": name, "specs": specs if images else None, "met": met, "context": context})

        return enter

    def _leaving(self, module: nn.Module, args: Any, output: Any) -> None:
        call = self._open.pop()
        if call["specs"] is None or call.get("holds_calls"):
            return
        grad, autocast = call["context"]
        key = (*module_key(module), repr(map_leaves(_key_of, call["specs"])), grad, autocast)
        text = f"{type(module).__name__}({module.extra_repr()})"
        case = self.cases.setdefault(key, LayerCase(key, text, call["specs"], grad, autocast))
        case.names.append(call["name"])
        case.met += call["met"]


def record_calls(model: nn.Module, device: torch.device, forward: Callable[[], Any]) -> list[LayerCase]:
    """The distinct calls in ``forward``, which runs ``model`` once; in the order they were first met."""
    recorder = CallRecorder(model, device)
    try:
        forward()
    finally:
        recorder.close()
    return list(recorder.cases.values())


def module_key(module: nn.Module) -> tuple[Any, ...]:
    """Equal for modules that do the same work: type, settings, and shapes of what they hold.

    A setting that is no plain value tells only itself apart.
    """
    settings = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    plain = tuple((key, repr(value) if isinstance(value, _PLAIN) else id(value)) for key, value in settings.items())
    tensors = (*module.named_parameters(), *module.named_buffers())
    held = tuple((name, tuple(t.shape), t.dtype, t.requires_grad) for name, t in tensors)
    return type(module), module.extra_repr(), plain, held


def _key_of(leaf: Any) -> Any:
    return leaf if isinstance(leaf, (TensorSpec, *_PLAIN)) else id(leaf)


def cliffs_of(module: nn.Module) -> list[str]:
    """What about a convolution is known to make channels-last slow somewhere."""
    if not isinstance(module, _ConvNd):
        return []
    inputs, outputs, groups = module.in_channels, module.out_channels, module.groups
    found = []
    if groups > 1:
        found.append("depthwise" if groups == inputs else "grouped")
    if inputs // groups % 8 or outputs // groups % 8:
        a_group = " a group" if groups > 1 else ""
        found.append(f"{inputs // groups} to {outputs // groups} channels{a_group}: not multiples of 8")
    return found[:1] if found[:1] == ["depthwise"] and not inputs % 8 else found


def total_calls(cases: Sequence[LayerCase]) -> int:
    return sum(len(case.names) for case in cases)

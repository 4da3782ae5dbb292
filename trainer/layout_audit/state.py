"""Strides of what lives longer than a step: parameters, buffers, gradients, optimizer state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.memory_format import memory_format_of, stride_order


@dataclass(frozen=True)
class StateTensor:
    """A tensor that is not channels-last, or lies in another order than its parameter."""

    name: str
    what: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    found: str


def wrong_parameters(model: nn.Module) -> list[StateTensor]:
    """4-D parameters and buffers in another order than channels-last."""
    named = [("parameter", model.named_parameters()), ("buffer", model.named_buffers())]
    return [
        StateTensor(name, what, tuple(tensor.shape), tuple(tensor.stride()), layout)
        for what, pairs in named
        for name, tensor in pairs
        if tensor.dim() == 4 and (layout := memory_format_of(tensor)) in ("contiguous", "other")
    ]


def wrong_gradients(model: nn.Module) -> list[StateTensor]:
    """Gradients in another order than their parameter. Under DistributedDataParallel they are views of its buckets."""
    pairs = ((name, "gradient", parameter, parameter.grad) for name, parameter in model.named_parameters())
    return list(_in_another_order(pairs))


def wrong_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[StateTensor]:
    """State tensors of a parameter's shape in another order than it. Masters appear by their place in the optimizer."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return list(
        _in_another_order(
            (names.get(id(parameter), f"stepped parameter {index}"), key, parameter, value)
            for index, parameter in enumerate(stepped)
            for key, value in optimizer.state.get(parameter, {}).items()
        )
    )


def _in_another_order(rows: Iterator[tuple[str, str, Tensor, object]]) -> Iterator[StateTensor]:
    for name, what, parameter, other in rows:
        same_shape = isinstance(other, Tensor) and other.dim() == 4 and other.shape == parameter.shape
        if isinstance(other, Tensor) and same_shape and stride_order(other) != stride_order(parameter):
            found = f"{memory_format_of(other)}, the parameter {memory_format_of(parameter)}"
            yield StateTensor(name, what, tuple(other.shape), tuple(other.stride()), found)

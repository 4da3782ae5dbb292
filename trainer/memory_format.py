"""Memory format: name it, apply it to model and optimizer state, read it off a tensor.

Always through ``.to(memory_format=...)``: only ``to`` gives meaningful strides where N, C, H or W is 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.errors import UserError

Layout = Literal["channels_last", "contiguous", "strided_view", "ambiguous", "other"]


def resolve_memory_format(channels_last: bool | str) -> torch.memory_format:
    assert isinstance(channels_last, bool), "auto is settled before anything is laid out, see format_trial"
    return torch.channels_last if channels_last else torch.contiguous_format


def memory_format_name(memory_format: torch.memory_format) -> str:
    """``channels_last`` or ``contiguous_format``, the word used in files and folder names."""
    return str(memory_format).removeprefix("torch.")


@torch.no_grad()
def apply_to_model(model: nn.Module, memory_format: torch.memory_format) -> nn.Module:
    """Convert 4-D parameters and buffers in place; tensors of any other rank are left alone, see ``left_alone``.

    ``Module.to(memory_format=)`` would also touch 5-D weights and raise there. Raises UserError for a model that is,
    or holds, a DistributedDataParallel: its buckets were laid out after the strides that the parameters had then.
    """
    for name, module in model.named_modules():
        if isinstance(module, DistributedDataParallel):
            raise UserError(
                f"{name or 'the model'} is wrapped in DistributedDataParallel already, whose gradient buckets keep the "
                "memory format they were made with: convert the model first, wrap it afterwards"
            )
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=memory_format)
    return model


@torch.no_grad()
def apply_to_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Give each state tensor of a parameter's shape that parameter's strides.

    ``load_state_dict`` keeps the strides of the file, which are contiguous; fused SGD walks raw
    memory on the CPU and would then mix up elements without an error.
    """
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def stride_order(tensor: Tensor) -> tuple[int, ...]:
    """Dimensions from the widest stride to the narrowest, those of size 1 left out.

    Two dense tensors of one shape lie in memory in the same order when these agree.
    """
    strides = tensor.stride()
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    return tuple(sorted(dims, key=lambda dim: (-strides[dim], dim)))


def memory_format_of(tensor: Tensor) -> Layout:
    """What the strides of a 4-D (N, C, H, W) tensor say about its memory format.

    ``channels_last`` and ``contiguous``: dense, in that order and not in the other one. ``strided_view``: in the order
    N, H, W, C with gaps, such as a slice of the channels. ``ambiguous``: the strides fit both orders, as where C == 1
    or H == W == 1, or PyTorch's reading hangs on the stride of a dimension of size 1. ``other``: the rest, such as
    expanded or transposed tensors and slices of contiguous ones. ValueError for any other rank.
    """
    if tensor.dim() != 4:
        raise ValueError(f"a memory format is a matter of 4-D tensors, this one has {tensor.dim()} dimensions")
    size = tensor.numel()
    nhwc, nchw = span(tensor, NHWC), span(tensor, NCHW)
    if size == 0 or (nhwc and nchw) or is_misread(tensor):
        return "ambiguous"
    if nhwc:
        return "channels_last" if nhwc == size else "strided_view"
    return "contiguous" if nchw == size else "other"


# Dimensions of an (N, C, H, W) tensor, innermost in memory first.
NHWC = (1, 3, 2, 0)
NCHW = (3, 2, 1, 0)


def span(tensor: Tensor, order: tuple[int, ...]) -> int:
    """Elements between the first and the last of ``tensor``, both counted, where going through it in ``order``
    (innermost first) only goes up in memory; 0 where it does not. Dense where this is ``numel()``."""
    last = 0
    for dim in order:
        if tensor.shape[dim] > 1:
            if tensor.stride(dim) <= last:
                return 0
            last += (tensor.shape[dim] - 1) * tensor.stride(dim)
    return last + 1


def is_misread(tensor: Tensor) -> bool:
    """Whether a 4-D tensor lies in the order N, H, W, C, but not to PyTorch: its kernels look at the strides of
    dimensions of size 1 too. ``image.permute(2, 0, 1)[None]`` is the common case."""
    if tensor.numel() == 0 or span(tensor, NCHW) or not span(tensor, NHWC):
        return False
    least = 0
    for dim in NHWC:  # the rule of c10's is_channels_last_strides_2d, N111 apart
        if tensor.stride(dim) < least:
            return True
        least = tensor.stride(dim) * max(1, tensor.shape[dim])
    return False


def check_stride_orders(optimizer: torch.optim.Optimizer, pairs: Iterable[tuple[Tensor, Tensor]] = ()) -> None:
    """Assert that parameter, gradient and optimizer state agree in stride order (our own invariant).

    ``pairs``: half weights and their masters, which must agree too, as must their gradients.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _check_order(parameter, gradient=parameter.grad, **optimizer.state.get(parameter, {}))
    for half, master in pairs:
        _check_order(half, gradient=half.grad, master=master)


def _check_order(parameter: Tensor, **others: Any) -> None:
    order = stride_order(parameter)
    for name, other in others.items():
        if isinstance(other, Tensor) and other.shape == parameter.shape:
            assert stride_order(other) == order, (
                f"{name} of a {tuple(parameter.shape)} parameter has strides {other.stride()}, "
                f"the parameter {parameter.stride()}: a fused step would mix up its elements"
            )


def left_alone(model: nn.Module) -> list[str]:
    """Names of parameters and buffers with more than four dimensions: images of another kind, which ``apply_to_model``
    does not convert. Those with fewer have no memory format."""
    named = (*model.named_parameters(), *model.named_buffers())
    return [name for name, tensor in named if tensor.dim() > 4]


def describe_strides(model: nn.Module, images: Tensor) -> str:
    """One line: the real strides of the first batch and of the first 4-D weight, and what was not converted."""
    line = f"first batch {tuple(images.shape)} strides {images.stride()}"
    weights = ((name, parameter) for name, parameter in model.named_parameters() if parameter.dim() == 4)
    for name, parameter in itertools.islice(weights, 1):
        line += f"; {name} {tuple(parameter.shape)} strides {parameter.stride()}"
    others = left_alone(model)
    return f"{line}; not 4-D, left as they are: {', '.join(others)}" if others else line

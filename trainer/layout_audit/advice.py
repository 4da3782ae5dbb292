"""Kinds of losses, and what to do about each."""

from __future__ import annotations

from trainer.layout_audit.records import LostOp
from trainer.layout_audit.where import BACKWARD

ADVICE = {
    "cat": "an operand is in another order and cat follows its first one: bring that operand to channels-last where it is made",
    "mixed_operands": "the operands lie in different orders and the first one decides: bring the foreign one to channels-last "
    "where it is made",
    "gradient": "a gradient arrives in contiguous order, as global pooling, mean and flatten send it, and decides: one "
    "activation, mostly small, and the next convolution's backward pass restores the format",
    "expanded": "an operand is an expanded view, mostly the gradient of a global pooling or sum: pool with keepdim through "
    "nn.AdaptiveAvgPool2d(1), or accept it, since the next convolution restores the format",
    "permuted_input": "an input was permuted, not converted, so its strides mislead PyTorch: use "
    ".to(memory_format=torch.channels_last) after permute",
    "reshape": "reshape, transpose, reshape writes the channels in a new order and leaves NCHW: use nn.ChannelShuffle, or "
    "index the channels (x[:, order]), which keeps the format",
    "flatten": "flatten of an image copies it into NCHW order for the linear layer: pool to 1x1 first, or accept one copy "
    "a pass, since no image follows",
    "contiguous": "the code asks for contiguous_format (.contiguous() or .to): drop the call, or ask for torch.preserve_format",
    "view": "view cannot split or join dimensions across channels-last strides: use reshape, or flatten",
    "pooling": "this pooling has no channels-last kernel on this device: another pooling may have one "
    "(max_pool2d, avg_pool2d and adaptive_avg_pool2d do)",
    "attention": "attention works on (N, tokens, channels): reshape once with flatten(2).transpose(1, 2), a view of a "
    "channels-last image",
    "slice_gradient": "the backward pass of an index or a slice writes into new zeros in contiguous order: take parts with "
    "torch.split or chunk, whose gradients are joined by one cat",
    "no_kernel": "this op has no channels-last kernel on this device; the next convolution with channels-last weights restores "
    "the format: replace the op, or accept the copy",
    "refused": "the op does not take channels-last input: convert before and after it, or replace it",
}  # fmt: skip

_BACKWARD_OF_SLICES = ("slice_backward", "select_backward", "slice_scatter", "index_put")


def kind_of(lost: LostOp) -> str:
    """The key of ``ADVICE`` that fits; decided on operands, op and the next view of the output."""
    name = lost.op.split(".")[0]
    # Indices of a pooling and masks are in whatever order their op wrote them; they decide nothing.
    foreign = [operand for operand in lost.operands if operand.foreign and "float" in operand.dtype]
    if name in ("cat", "stack"):
        return "cat" if foreign else "no_kernel"
    if any(0 in [s for s, size in zip(o.stride, o.shape, strict=True) if size > 1] for o in foreign):
        return "expanded"
    if any(operand.channels_inside for operand in foreign):
        return "permuted_input"
    if name in ("clone", "_to_copy", "contiguous", "copy"):
        return _kind_of_copy(lost)
    if "pool" in name and not foreign:
        return "pooling"
    if "attention" in name or "softmax" in name or name in ("bmm", "baddbmm"):
        return "attention"
    if foreign:
        return "gradient" if lost.where.pass_name == BACKWARD else "mixed_operands"
    return "slice_gradient" if name in _BACKWARD_OF_SLICES else "no_kernel"


def _kind_of_copy(lost: LostOp) -> str:
    ranks = {len(operand.shape) for operand in lost.operands}
    if lost.viewed_as is not None and lost.viewed_as <= 2:
        return "flatten"
    if ranks != {4} or (lost.viewed_as is not None and lost.viewed_as != 4):
        return "reshape"
    return "contiguous"

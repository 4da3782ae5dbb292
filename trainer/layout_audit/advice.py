"""Kinds of losses, and what to do about each. ``tests/test_layout_advice.py`` takes every advice that promises a cure."""

from __future__ import annotations

import linecache

from trainer.layout_audit.records import LostOp
from trainer.layout_audit.where import BACKWARD

ADVICE = {
    "cat": "an operand is in another order, and one is enough for cat and stack to write NCHW: bring each such operand to "
    "channels-last where it is made",
    "mixed_operands": "the operands lie in different orders and the first one decides, in where the condition: bring the "
    "foreign one to channels-last where it is made",
    "filled": "the result goes into a tensor that was made in another order: make that one channels-last, with "
    "torch.zeros_like of the image or torch.empty(..., memory_format=torch.channels_last); circular padding makes it "
    "inside PyTorch: accept the copy",
    "gradient": "a gradient arrives in contiguous order, as mean, adaptive pooling and flatten send it, and decides: one "
    "activation, mostly small, and the next convolution's backward pass restores the format; F.avg_pool2d over the whole "
    "image sends it in channels-last",
    "permuted_input": "an input was permuted, not converted, so its strides mislead PyTorch: use "
    ".to(memory_format=torch.channels_last) after permute",
    "reshape": "the channels are taken apart and written in NCHW order: use nn.ChannelShuffle for a shuffle; rearrange "
    "other channels as the last dimension, between permute(0, 2, 3, 1) and permute(0, 3, 1, 2)",
    "tokens": "tokens are copied into the order (N, C, HW): leave the copy out, "
    "tokens.transpose(1, 2).unflatten(2, (H, W)) is a channels-last image without one",
    "other_rank": "the op, or attention or a matrix product around it, works on the image in other dimensions and writes it "
    "channel by channel: let it work on x.permute(0, 2, 3, 1) or x.flatten(2).transpose(1, 2), whose last dimension holds "
    "the channels, and go back by permute or by transpose(1, 2).unflatten(2, (H, W))",
    "flatten": "flatten of an image copies it into NCHW order for the linear layer: pool to 1x1 first, or accept one copy "
    "a pass, since no image follows",
    "contiguous": "the code asks for contiguous_format (.contiguous() or .to): drop the call, or ask for torch.preserve_format",
    "view": "view cannot split or join dimensions across channels-last strides: use reshape, or flatten",
    "pooling": "this pooling has no channels-last kernel on this device: another pooling may have one "
    "(max_pool2d, avg_pool2d and adaptive_avg_pool2d do)",
    "softmax": "softmax writes NCHW: take it between permute(0, 2, 3, 1) and permute(0, 3, 1, 2), which keeps the format",
    "slice_gradient": "the backward pass of an index or a slice writes into new zeros in contiguous order: take parts with "
    "torch.split or chunk, whose gradients are joined by one cat",
    "weight": "a convolution's weight is computed anew in each step, as spectral norm does: a copy of the weight alone, "
    "while the activations keep their format: accept it",
    "no_kernel": "this op has no channels-last kernel on this device; the next convolution with channels-last weights restores "
    "the format: replace the op, or accept the copy",
    "refused": "the op does not take channels-last input: convert before and after it, or replace it",
}  # fmt: skip

_BACKWARD_OF_SLICES = ("slice_backward", "select_backward", "slice_scatter", "index_put", "index_add")
_COPIES = ("clone", "_to_copy", "contiguous", "copy")


def kind_of(lost: LostOp) -> str:
    """The key of ``ADVICE`` that fits; decided on operands, op, source line and the next view of the output."""
    name = lost.op.split(".")[0].rstrip("_")
    if lost.of_weight:
        return "weight"
    if lost.where.pass_name == BACKWARD and name in _BACKWARD_OF_SLICES:
        return "slice_gradient"
    if lost.filled:
        return "filled"
    return _kind_by_op(lost, name) or _kind_by_operands(lost, name)


def _kind_by_op(lost: LostOp, name: str) -> str | None:
    if name in ("cat", "stack") and any(operand.foreign for operand in lost.operands):
        return "cat"
    if name in _COPIES:
        return _kind_of_copy(lost)
    if not any(operand.channels_inside for operand in lost.operands):
        return "no_kernel" if name == "col2im" else "other_rank"  # fold takes columns in NCHW alone
    return "softmax" if "softmax" in name else None


def _kind_by_operands(lost: LostOp, name: str) -> str:
    # Indices of a pooling and masks are in whatever order their op wrote them, and decide in ``where`` alone.
    counted = [one for one in lost.operands if "float" in one.dtype or name == "where"]
    foreign = [operand for operand in counted if operand.foreign]
    if any(operand.channels_inside for operand in foreign):
        return "permuted_input"
    if "pool" in name and not foreign:
        return "pooling"
    if not foreign or name.startswith("scatter"):
        return "no_kernel"
    return "gradient" if lost.where.pass_name == BACKWARD and name != "where" else "mixed_operands"


def _kind_of_copy(lost: LostOp) -> str:
    ranks = {len(operand.shape) for operand in lost.operands}
    if lost.viewed_as is not None and lost.viewed_as <= 2:
        return "flatten"
    if ranks == {3}:
        return "tokens"
    if ranks != {4} or (lost.viewed_as is not None and lost.viewed_as != 4):
        return "reshape"
    # Some ops of PyTorch copy inside, where the user cannot drop a call.
    file, _, line = lost.where.line.rpartition(":")
    source = linecache.getline(file, int(line)) if file else ""
    return "contiguous" if "contiguous" in source or ".to(" in source else "no_kernel"

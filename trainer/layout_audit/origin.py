"""Which channels-last images the data behind a tensor stems from, and when one of them is seen again.

An image keeps its order through views of any rank, since the strides of a view tell which dimension is what. An op on
such views writes new memory; where that is seen as a 4-D tensor of the image's N, H and W in another order, the op
that chose the order has lost the format.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor

from trainer.layout_audit.records import LostOp, Operand, StorageNote
from trainer.memory_format import stride_order

Sizes = frozenset[tuple[int, int, int]]  # (N, H, W)
NOTHING: Sizes = frozenset()
_MOST = 64  # of a view in many dimensions; more than any real one gives
WRONG = ("contiguous", "other")


class Read(NamedTuple):
    """A tensor that an op read: its record, what is known of its memory, and the images that it may hold."""

    tensor: Tensor
    operand: Operand
    note: StorageNote
    sizes: Sizes

    @classmethod
    def of(cls, tensor: Tensor, operand: Operand, note: StorageNote) -> Read:
        note_image(tensor, operand, note)
        return cls(tensor, operand, note, sizes_behind(tensor, operand, note))

    def planes_in(self, output: Tensor) -> int | None:
        """Of a copy of a view of an image: how many elements lie side by side without a step to another channel; all
        where the channels are the widest step within an image. None if ``output`` is no such copy."""
        if self.note.image is None or output.dim() == 4 or self.tensor.shape != output.shape:
            return None
        _, (step_n, _, _, step_w) = self.note.image
        steps = [(output.shape[dim], self.tensor.stride(dim)) for dim in stride_order(output)]
        within = [(size, step) for size, step in steps if step < step_n]
        if within and within[0][1] < step_w:
            return output.numel()
        plane = itertools.takewhile(lambda entry: entry[1] >= step_w, reversed(within))
        return math.prod(size for size, _ in plane)


def sizes_behind(tensor: Tensor, operand: Operand, note: StorageNote) -> Sizes:
    """N, H and W of the images that ``tensor`` may hold: those noted for its memory, and by the strides of this view.

    Dimensions are told apart by the strides of the channels-last image in the same memory: a step of at least a pixel's
    is one along W, of at least a row's along H, of at least an image's along N.
    """
    if operand.channels_inside:
        n, _, h, w = tensor.shape
        return frozenset([(n, h, w)])
    if note.image is None:
        return note.sizes
    (n, _, h, w), (step_n, _, step_h, step_w) = note.image
    found = ([n], [h], [w])
    for size, step in zip(tensor.shape, tensor.stride(), strict=True):
        if step >= step_w:
            found[0 if step >= step_n else 1 if step >= step_h else 2].append(size)
    return note.sizes | frozenset(itertools.islice(itertools.product(*found), _MOST))


def note_image(tensor: Tensor, operand: Operand, note: StorageNote) -> None:
    if operand.layout in ("channels_last", "strided_view"):
        note.image = tuple(tensor.shape), tuple(tensor.stride())


def is_image(tensor: Tensor, layout: str, sizes: Sizes) -> bool:
    """Whether ``tensor`` is one of these images, but in another order than channels-last."""
    return layout in WRONG and (tensor.shape[0], *tensor.shape[2:]) in sizes


def is_lost(tensor: Tensor, layout: str, note: StorageNote) -> bool:
    """Whether ``tensor``, of memory that an op wrote, is an image that this op brought into another order."""
    if note.writer is None or tensor.dim() != 4:
        return False
    if note.plane is not None and layout == "contiguous":
        return 1 < tensor.shape[3] <= note.plane
    rows = any(len(one.shape) == 2 for one in note.writer.outputs)
    _, c, h, w = tensor.shape
    if rows and c == h == w:  # as well (N, H, W, C) out of the rows that a linear layer wrote
        return False
    return is_image(tensor, layout, note.sizes)


def keeps_order(before: Tensor, after: Tensor) -> bool:
    """Whether an op wrote ``after`` in the order in which it read ``before``."""
    return before.shape == after.shape and stride_order(before) == stride_order(after)


def carry(op: LostOp, output: Tensor, reads: Iterable[Read], note: StorageNote) -> None:
    """Note which images may come back out of what ``op`` wrote, and the op that chose their order.

    Two dimensions out of more are a pooled image, unlike those of a linear layer, which takes and gives two.
    """
    known = [read for read in reads if read.sizes and (output.dim() > 2 or read.tensor.dim() == 2)]
    if not known or output.dim() < 2:
        return
    kept = [read.note for read in known if keeps_order(read.tensor, output)]
    note.sizes = frozenset(itertools.islice(note.sizes.union(*(read.sizes for read in known)), _MOST))
    note.writer = kept[0].writer if kept else op
    planes = [plane for read in known if (plane := read.planes_in(output)) is not None]
    note.plane = kept[0].plane if kept else max(planes, default=None)

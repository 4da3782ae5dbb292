"""The audit itself: what becomes of channels-last through each op."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from trainer.layout_audit.advice import kind_of
from trainer.layout_audit.origin import NOTHING, WRONG, Read, carry, is_image, is_lost, keeps_order, note_image
from trainer.layout_audit.records import GRID, Counts, LayoutLost, LostOp, Operand, StorageNote
from trainer.layout_audit.where import BACKWARD, PASSES

# Ops that take shape and type of an input, not its values: they carry no format on.
_FACTORIES = ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided")
# Not the stride of a convolution, which the user set.
_ABOUT_STRIDES = re.compile(r"strides|size and stride|contiguous|channels.?last|memory.?format", re.IGNORECASE)
Named = list[tuple[str, Tensor]]
Judged = list[tuple[Tensor, Operand]]  # what an op wrote, with its record


class LayoutAudit:
    """What an audit found. ``lost``: ops in the order they were seen to lose the format; ``counts``: by pass;
    ``refused``: the op whose error ended the audited block, if that was about the format."""

    def __init__(self, on_loss: str, weights: Iterable[Tensor] = ()) -> None:
        self.lost: list[LostOp] = []
        self.refused: list[LostOp] = []
        self.counts = {name: Counts() for name in PASSES}
        self._on_loss = on_loss
        self._weights = {address(weight): tuple(weight.shape) for weight in weights}
        self._raised: list[tuple[BaseException, LostOp]] = []
        self._notes: dict[int, StorageNote] = {}  # by address; renewed whenever an op brings new memory

    @property
    def lost_bytes(self) -> int:
        return sum(lost.lost_bytes for lost in self.lost)

    def look(self, op: LostOp, inputs: Named, outputs: Named, changed: Named) -> None:
        """Judge an op that has run; ``op`` is its record, filled further where the format is lost.

        ``changed``: the inputs that it wrote into, as they are now.
        """
        notes = {address(tensor): self._note(tensor) for _, tensor in inputs}
        views = [tensor for _, tensor in outputs if address(tensor) in notes]
        new = _operands([pair for pair in outputs if address(pair[1]) not in notes])
        into = _operands([pair for pair in changed if address(pair[1]) in notes])
        self._see_again([tensor for _, tensor in inputs], views, notes)
        reads = [
            Read.of(tensor, operand, notes[address(tensor)])
            for operand, (_, tensor) in zip(op.operands, inputs, strict=True)
        ]
        bad = _lost_in(op, reads, new, into)
        carried = list({id(lost): lost for note in notes.values() for lost in note.losses}.values())
        self._note_restored(op, carried, any(operand.layout == "channels_last" for _, operand in new))
        for tensor, operand in new:
            self._notes[address(tensor)] = _note_of_new(op, (tensor, operand), reads, carried, bad)
        for tensor, _ in into:
            _note_change(op, tensor, reads, notes[address(tensor)], bad)
        if bad or any(read.operand.channels_inside for read in reads):
            self._count(op, [operand for _, operand in new], bool(bad))
        if bad:
            op.filled = any(tensor is one for tensor, _ in into for one in bad)
            op.of_weight = any(self._is_weight(op, read) for read in reads)
            self._lose(op, bad)

    def refuse(self, op: LostOp, error: Exception) -> None:
        """An op with a channels-last input raised; kept where the message is about strides, not about a bug."""
        if any(operand.channels_inside for operand in op.operands) and _ABOUT_STRIDES.search(str(error)):
            op.error, op.kind = " ".join(str(error).split()), "view" if "view size" in str(error) else "refused"
            self._raised.append((error, op))

    def finish(self, error: BaseException | None = None) -> None:
        """Name the kind of each loss, which may hang on what came after it. ``error``: what ended the audited block;
        a refusal that the code caught, and went on from, is none."""
        while error is not None and not self.refused:
            self.refused = [op for raised, op in self._raised if raised is error]
            error = error.__cause__
        for lost in self.lost:
            lost.kind = kind_of(lost)

    def _is_weight(self, op: LostOp, read: Read) -> bool:
        """A parameter, or in the backward pass a gradient of one's shape."""
        known = self._weights.values() if op.where.pass_name == BACKWARD else ()
        return read.operand.channels_inside and (address(read.tensor) in self._weights or read.operand.shape in known)

    def _note(self, tensor: Tensor) -> StorageNote:
        return self._notes.setdefault(address(tensor), StorageNote())

    def _see_again(self, inputs: Sequence[Tensor], views: Sequence[Tensor], notes: Mapping[int, StorageNote]) -> None:
        """Memory that an earlier op wrote: seen as an image, it shows whether that op moved the channels."""
        for view in views:
            for lost in notes[address(view)].losses:
                lost.viewed_as = lost.viewed_as or view.dim()
        for tensor in (*inputs, *views):
            note = notes[address(tensor)]
            if note.writer is not None and tensor.dim() == 4:
                operand = Operand.of("out", tensor)
                if is_lost(tensor, operand.layout, note):
                    self._lose_late(note, note.writer, tensor, operand)

    def _lose_late(self, note: StorageNote, lost: LostOp, tensor: Tensor, operand: Operand) -> None:
        note.sizes, note.writer, note.plane = NOTHING, None, None
        note.losses.append(lost)
        if not any(lost is one for one in self.lost):
            lost.outputs.append(operand)
            self.counts[lost.where.pass_name].lost += 1
            self._lose(lost, [tensor])

    def _lose(self, op: LostOp, tensors: Sequence[Tensor]) -> None:
        op.lost_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.lost.append(op)
        if self._on_loss == "raise":
            op.kind = kind_of(op)
            raise LayoutLost(op)

    def _count(self, op: LostOp, new: Sequence[Operand], lost: bool) -> None:
        layouts = [operand.layout for operand in new]
        if lost:
            outcome = "lost"
        elif not new:
            outcome = "view"
        elif any(layout in ("channels_last", "strided_view") for layout in layouts):
            outcome = "kept"
        else:
            outcome = "ambiguous"
        counts = self.counts[op.where.pass_name]
        setattr(counts, outcome, getattr(counts, outcome) + 1)

    @staticmethod
    def _note_restored(op: LostOp, carried: Sequence[LostOp], restored: bool) -> None:
        for lost in carried if restored and not _is_factory(op) else ():
            if lost.restored_by is None and lost.where.pass_name == op.where.pass_name:
                lost.restored_by = f"{op.op} in {op.where.module}"


def _operands(pairs: Iterable[tuple[str, Tensor]]) -> Judged:
    return [(tensor, Operand.of(name, tensor)) for name, tensor in pairs]


def _is_factory(op: LostOp) -> bool:
    return op.op.split(".")[0] in _FACTORIES


def _lost_in(op: LostOp, reads: Sequence[Read], new: Judged, into: Judged) -> list[Tensor]:
    """What the op wrote of an image in another order: new tensors, and those that it was given to fill."""
    if _is_factory(op):
        return []
    if any(read.operand.channels_inside for read in reads):
        # A gradient of grid_sample's places is no image either.
        grids = {read.tensor.shape for read in reads if read.operand.name == GRID}
        wrong = [one for one in (*new, *into) if one[1].layout in WRONG and one[0].shape not in grids]
        return [tensor for tensor, operand in wrong if not operand.channels_inside]  # H and W swapped is no loss yet
    sizes = NOTHING.union(*(read.sizes for read in reads))
    images = [tensor for tensor, operand in new if is_image(tensor, operand.layout, sizes)]
    return [tensor for tensor in images if not any(keeps_order(read.tensor, tensor) for read in reads)]


def _note_of_new(
    op: LostOp, made: tuple[Tensor, Operand], reads: Sequence[Read], carried: Sequence[LostOp], bad: Sequence[Tensor]
) -> StorageNote:
    tensor, operand = made
    # A loss is carried on by what still is an image, or one in other dimensions.
    losses = carried if operand.layout not in ("channels_last", "rank 0", "rank 1", "rank 2") else ()
    note = StorageNote(losses=list(losses))
    if any(tensor is one for one in bad):
        note.losses.append(op)
    elif operand.layout != "ambiguous" and not operand.channels_inside and not _is_factory(op):
        carry(op, tensor, reads, note)
    note_image(tensor, operand, note)
    return note


def _note_change(op: LostOp, tensor: Tensor, reads: Sequence[Read], note: StorageNote, bad: Sequence[Tensor]) -> None:
    """``op`` wrote into memory that was there."""
    if any(tensor is one for one in bad):
        note.losses.append(op)
    elif tensor.dim() != 4:
        carry(op, tensor, [read for read in reads if read.note is not note], note)
        op.filled = note.writer is op


def address(tensor: Tensor) -> int:
    """Of the memory behind a tensor; a view has its base's."""
    return tensor.untyped_storage().data_ptr()

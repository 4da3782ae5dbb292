"""The audit itself: a dispatch mode that sees each aten op and what becomes of channels-last through it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.layout_audit.advice import kind_of
from trainer.layout_audit.records import Counts, LayoutLost, LostOp, Operand, StorageNote, innermost, is_plain
from trainer.layout_audit.where import PASSES, Locator

# Ops that take shape and type of an input, not its values: they carry no format on.
_FACTORIES = ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided")
_ABOUT_STRIDES = re.compile(r"stride|contiguous|channels.?last|memory.?format", re.IGNORECASE)
Named = list[tuple[str, Tensor]]


class LayoutAudit:
    """What an audit found. ``lost``: ops in the order they ran; ``counts``: by pass; ``refused``: ops that raised."""

    def __init__(self, on_loss: str) -> None:
        self.lost: list[LostOp] = []
        self.refused: list[LostOp] = []
        self.counts = {name: Counts() for name in PASSES}
        self._on_loss = on_loss
        self._notes: dict[int, StorageNote] = {}  # by address; renewed whenever an op brings new memory

    @property
    def lost_bytes(self) -> int:
        return sum(lost.lost_bytes for lost in self.lost)

    def look(self, op: LostOp, inputs: Named, outputs: Named) -> None:
        """Judge an op that has run; ``op`` is its record, filled further where the format is lost."""
        notes = {address(tensor): self._note(tensor) for _, tensor in inputs}
        new = [(name, tensor) for name, tensor in outputs if address(tensor) not in notes]
        self._settle_pending(op, [tensor for _, tensor in outputs if address(tensor) in notes], notes)
        direct = any(operand.channels_inside for operand in op.operands)
        from_image = direct or any(note.unrolled for note in notes.values())
        for operand, (_, tensor) in zip(op.operands, inputs, strict=True):
            notes[address(tensor)].channels_last |= operand.layout == "channels_last"
        written = [(Operand.of(name, tensor), tensor) for name, tensor in new]
        bad = [(operand, tensor) for operand, tensor in written if operand.layout in ("contiguous", "other")]
        carried = list({id(lost): lost for note in notes.values() for lost in note.losses}.values())
        self._note_restored(op, carried, any(operand.layout == "channels_last" for operand, _ in written))
        pending = None if from_image else _pending(op, inputs, new, notes)
        bad = [] if not from_image or op.op.split(".")[0] in _FACTORIES else bad
        for operand, tensor in written:
            # A loss is carried on by what still is an image, or one in other dimensions.
            losses = carried if operand.layout not in ("channels_last", "rank 0", "rank 1", "rank 2") else []
            losses = [*losses, op] if any(tensor is one for _, one in bad) else losses
            self._notes[address(tensor)] = StorageNote(
                operand.layout == "channels_last", direct and tensor.dim() in (3, 5, 6), losses, pending
            )
        if direct or bad:
            self._count(op, new, written, bool(bad))
        if bad:
            self._lose(op, [tensor for _, tensor in bad])

    def refuse(self, op: LostOp, error: Exception) -> None:
        """An op with a channels-last input raised; kept where the message is about strides, not about a bug."""
        if any(operand.channels_inside for operand in op.operands) and _ABOUT_STRIDES.search(str(error)):
            op.error, op.kind = " ".join(str(error).split()), "view" if "view size" in str(error) else "refused"
            self.refused.append(op)

    def finish(self) -> None:
        """Name the kind of each loss, which may hang on what came after it."""
        for lost in self.lost:
            lost.kind = kind_of(lost)

    def _note(self, tensor: Tensor) -> StorageNote:
        return self._notes.setdefault(address(tensor), StorageNote())

    def _lose(self, op: LostOp, tensors: Sequence[Tensor]) -> None:
        op.lost_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.lost.append(op)
        if self._on_loss == "raise":
            op.kind = kind_of(op)
            raise LayoutLost(op)

    def _count(self, op: LostOp, new: Named, written: Sequence[tuple[Operand, Tensor]], lost: bool) -> None:
        layouts = [operand.layout for operand, _ in written]
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

    def _settle_pending(self, op: LostOp, views: Sequence[Tensor], notes: Mapping[int, StorageNote]) -> None:
        """A view of what an earlier op wrote: as an image, it shows whether that op moved the channels."""
        for view in views:
            note = notes[address(view)]
            for lost in note.losses:
                lost.viewed_as = lost.viewed_as or view.dim()
            pending = note.pending
            if pending is not None and view.dim() == 4:
                note.pending = None
                operand = Operand.of("out", view)
                if operand.layout == "contiguous":
                    pending.outputs.append(operand)
                    self.counts[pending.where.pass_name].lost += 1
                    note.losses.append(pending)
                    self._lose(pending, [view])

    @staticmethod
    def _note_restored(op: LostOp, carried: Sequence[LostOp], restored: bool) -> None:
        for lost in carried if restored else ():
            if lost.restored_by is None and lost.where.pass_name == op.where.pass_name:
                lost.restored_by = f"{op.op} in {op.where.module}"


def _pending(op: LostOp, inputs: Named, new: Named, notes: Mapping[int, StorageNote]) -> LostOp | None:
    """``op`` if it wrote a view of a channels-last image with its channels moved, in another rank than 4."""
    if len(new) != 1:
        return None
    (_, output), outcome = new[0], None
    for _, tensor in inputs:
        if notes[address(tensor)].channels_last and tensor.shape == output.shape and output.dim() != 4:
            inner, outer = innermost(tensor), innermost(output)
            outcome = op if None not in (inner, outer) and inner != outer else outcome
    return outcome


def address(tensor: Tensor) -> int:
    """Of the memory behind a tensor; a view has its base's."""
    return tensor.untyped_storage().data_ptr()


class _Watch(TorchDispatchMode):
    def __init__(self, audit: LayoutAudit, locator: Locator) -> None:
        super().__init__()
        self._audit = audit
        self._locator = locator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = str(func).removeprefix("aten.").removesuffix(".default")
        where = self._locator.now(name)
        inputs = named_tensors(func, args, kwargs)

        def record(pairs: Named) -> LostOp:
            asked = kwargs.get("memory_format")
            return LostOp(name, where, [Operand.of(*pair) for pair in pairs], [], memory_format=asked and str(asked))

        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            self._audit.refuse(record(inputs), error)
            raise
        outputs = [(f"out[{index}]", one) for index, one in enumerate(_flat(result)) if is_plain(one)]
        for ins, outs in _pairs(name, args, inputs, outputs):
            op = record(ins)
            op.outputs = [Operand.of(*pair) for pair in outs]
            self._audit.look(op, ins, outs)
        return result


def _pairs(name: str, args: Sequence[Any], inputs: Named, outputs: Named) -> Iterator[tuple[Named, Named]]:
    """Inputs and outputs that belong together: ``_foreach`` ops are many small ops in one."""
    if not name.startswith("_foreach"):
        yield inputs, outputs
    elif args and isinstance(args[0], (list, tuple)) and len(args[0]) == len(outputs) == len(inputs):
        for pair, output in zip(inputs, outputs, strict=True):
            yield [pair], [output]


def named_tensors(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Named:
    """The tensors among an op's arguments, under the names that its schema gives them."""
    schema = getattr(func, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    found: Named = []
    for index, value in enumerate(args):
        name = names[index] if index < len(names) else str(index)
        found += _under(name, value)
    for name, value in kwargs.items():
        found += _under(name, value)
    return found


def _under(name: str, value: Any) -> Named:
    if is_plain(value):
        return [(name, value)]
    if isinstance(value, (list, tuple)):
        return [(f"{name}[{index}]", one) for index, one in enumerate(value) if is_plain(one)]
    return []


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    else:
        yield value


@contextlib.contextmanager
def audit_layout(
    model: nn.Module | None = None, on_loss: Literal["record", "raise"] = "record"
) -> Iterator[LayoutAudit]:
    """Watch every op of this thread and of its backward passes for channels-last that gets lost.

    ``model``: whose modules to name by their path; others appear under their class. ``on_loss="raise"``: a
    ``LayoutLost`` at the first loss. PyTorch is left as it was, also after an exception. Compiled code falls back to
    eager under a dispatch mode, so what ``torch.compile`` does with strides is not seen here.
    """
    if on_loss not in ("record", "raise"):
        raise ValueError(f"on_loss is 'record' or 'raise', not {on_loss!r}")
    audit, locator = LayoutAudit(on_loss), Locator(model)
    with locator.watching(), _Watch(audit, locator):
        try:
            yield audit
        finally:
            audit.finish()

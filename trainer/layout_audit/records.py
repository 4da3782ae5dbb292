"""What an audit keeps of an op: plain values, ready for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from trainer.layout_audit.where import Where
from trainer.memory_format import is_misread, memory_format_of

GRID = "grid"  # grid_sample's places, by the name that PyTorch gives the operand


@dataclass(frozen=True)
class Operand:
    """A tensor as an op saw it. ``layout``: see ``memory_format_of``, ``rank N`` where that is not 4."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    layout: str
    channels_inside: bool  # in memory the channels of a pixel lie side by side
    foreign: bool  # an image in another order than channels-last; the grid of grid_sample is none

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> Operand:
        layout = memory_format_of(tensor) if tensor.dim() == 4 else f"rank {tensor.dim()}"
        misread = tensor.dim() == 4 and is_misread(tensor)
        inside = (
            misread or layout in ("channels_last", "strided_view") or (layout == "other" and _channel_inner(tensor))
        )
        return cls(
            name,
            tuple(tensor.shape),
            tuple(tensor.stride()),
            str(tensor.dtype).removeprefix("torch."),
            str(tensor.device),
            layout,
            inside,
            name != GRID and (misread or layout in ("contiguous", "other")),
        )

    def __str__(self) -> str:
        return f"{self.name} {self.shape} strides {self.stride} {self.dtype} {self.device} {self.layout}"


def _channel_inner(tensor: Tensor) -> bool:
    """Dimension 1 innermost, as in a channels-last tensor whose H and W were swapped."""
    shape, strides = tensor.shape, tensor.stride()
    return shape[1] > 1 and strides[1] == 1 and all(s > 1 for d, s in enumerate(strides) if d != 1 and shape[d] > 1)


@dataclass
class LostOp:
    """An op with a channels-last input that wrote a new tensor in another order, or (``error``) refused to run."""

    op: str
    where: Where
    operands: list[Operand]
    outputs: list[Operand]
    lost_bytes: int = 0
    memory_format: str | None = None  # what the call asked for, where it did
    filled: bool = False  # it wrote into a tensor that was there
    of_weight: bool = False  # it read a parameter of the model
    viewed_as: int | None = None  # rank of the next view of the output
    restored_by: str | None = None
    error: str | None = None
    kind: str = ""

    @property
    def foreign(self) -> list[str]:
        """Names of the operands in another order."""
        return [operand.name for operand in self.operands if operand.foreign]

    def to_json(self) -> dict[str, Any]:
        record = asdict(self)
        where = record.pop("where")
        return {**record, "pass": where.pop("pass_name"), **where, "foreign": self.foreign}


class LayoutLost(RuntimeError):
    """Raised by ``audit_layout(on_loss="raise")`` at the first loss; ``lost`` holds all that is known of it."""

    def __init__(self, lost: LostOp) -> None:
        inputs = "; ".join(map(str, lost.operands))
        outputs = "; ".join(map(str, lost.outputs))
        super().__init__(
            f"{lost.op} in {lost.where.module} lost channels_last in the {lost.where.pass_name} pass "
            f"({lost.where.line}); inputs: {inputs}; output: {outputs}"
        )
        self.lost = lost


@dataclass
class Counts:
    """Ops with a channels-last input of one pass, by what became of it."""

    kept: int = 0
    lost: int = 0
    view: int = 0
    ambiguous: int = 0  # the shape of what was written has no format, or too few dimensions for one

    @property
    def total(self) -> int:
        return self.kept + self.lost + self.view + self.ambiguous


@dataclass
class StorageNote:
    """What an audit knows of the memory behind tensors."""

    image: tuple[tuple[int, ...], tuple[int, ...]] | None = None  # shape and strides of a channels-last image in it
    sizes: frozenset[tuple[int, int, int]] = frozenset()  # (N, H, W) of images written into it in other dimensions
    writer: LostOp | None = None  # the op that chose the order in which they lie
    plane: int | None = None  # after a copy of an image in other dimensions: see Read.planes_in
    losses: list[LostOp] = field(default_factory=list)


def is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided

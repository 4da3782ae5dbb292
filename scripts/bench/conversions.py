"""The ways to change, or keep, a 4-D tensor's memory format: what each copies, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import stopwatch
import torch
from both_formats import CHANNELS_LAST, CONTIGUOUS, FORMATS
from torch import Tensor

from trainer.levels import dtype_name
from trainer.memory_format import resolve_memory_format


@dataclass(frozen=True)
class Way:
    """``name`` as one writes it; ``source``: the format of the tensor it is called on; ``nhwc``: a permuted view of it."""

    source: str
    name: str
    convert: Callable[[Tensor], Tensor]
    nhwc: bool = False

    @property
    def key(self) -> str:
        return f"{self.source}: {self.name}"

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        tensor = torch.randn(shape).to(device, dtype)
        tensor = tensor.to(memory_format=resolve_memory_format(self.source == CHANNELS_LAST))
        return tensor.permute(0, 2, 3, 1) if self.nhwc else tensor


def _to_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last)


WAYS = tuple(
    way
    for source in FORMATS
    for way in (
        Way(source, "x.contiguous()", lambda x: x.contiguous()),
        Way(source, "x.to(memory_format=torch.channels_last)", _to_last),
        Way(
            source,
            "x.contiguous(memory_format=torch.channels_last)",
            lambda x: x.contiguous(memory_format=torch.channels_last),
        ),
        Way(source, "x.clone()", lambda x: x.clone()),
        Way(source, "x.permute(0, 2, 3, 1)", lambda x: x.permute(0, 2, 3, 1)),
        Way(source, "x.permute(0, 2, 3, 1).contiguous()", lambda x: x.contiguous(), nhwc=True),
    )
)
TO_LAST = next(way for way in WAYS if way.source == CONTIGUOUS and way.convert is _to_last)
TO_CONTIGUOUS = next(way for way in WAYS if way.source == CHANNELS_LAST and way.name == "x.contiguous()")


@dataclass(frozen=True)
class Cost:
    """What one way did with one tensor: strides before and after, bytes written (0: the same memory), seconds."""

    way: Way
    strides: tuple[tuple[int, ...], tuple[int, ...]]
    copied_bytes: int
    seconds: list[float]  # a round
    median: float

    @property
    def gb_per_s(self) -> float | None:
        """Read and written; None where nothing was copied."""
        return 2 * self.copied_bytes / self.median / 1e9 if self.copied_bytes and self.median else None

    def record(self) -> dict[str, Any]:
        return {
            "source": self.way.source,
            "call": self.way.name,
            "strides_before": list(self.strides[0]),
            "strides_after": list(self.strides[1]),
            "copied_bytes": self.copied_bytes,
            "seconds": self.median,
            "rounds_s": self.seconds,
            "gb_per_s": self.gb_per_s,
        }

    def line(self) -> str:
        rate = self.gb_per_s
        what = f"{rate:8.2f} GB/s" if rate else "  no copy    "
        return f"    {self.way.name:<48}{1e3 * self.median:10.4f} ms {what}  {self.strides[0]} -> {self.strides[1]}"


class ShapeCosts:
    """All ways on one shape, timed in turns."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self._device = shape, dtype, device
        self.costs: list[Cost] = []

    def measure(self, rounds: int, warmup_rounds: int, min_seconds: float) -> None:
        """One way at a time, its rounds in a row would meet one state of the machine: so all take turns."""
        tensors = {way.key: way.tensor(self.shape, self.dtype, self._device) for way in WAYS}
        arms = {way.key: _call(way, tensors[way.key]) for way in WAYS}
        times = stopwatch.measure(arms, self._device, rounds, warmup_rounds, min_seconds)
        self.costs = [self._cost(way, tensors[way.key], times) for way in WAYS]

    def _cost(self, way: Way, tensor: Tensor, times: stopwatch.Times) -> Cost:
        result = way.convert(tensor)
        copied = result.numel() * result.element_size() if result.data_ptr() != tensor.data_ptr() else 0
        strides = tuple(tensor.stride()), tuple(result.stride())
        return Cost(way, strides, copied, times.totals(way.key), times.median(way.key))

    def cost_of(self, way: Way) -> Cost:
        return next(cost for cost in self.costs if cost.way is way)

    @property
    def title(self) -> str:
        size = self.shape[0] * self.shape[1] * self.shape[2] * self.shape[3] * self.dtype.itemsize
        return f"{','.join(map(str, self.shape))} {dtype_name(self.dtype)}, {size / 2**20:.3g} MiB"

    def lines(self) -> list[str]:
        lines = [self.title]
        for source in FORMATS:
            lines.append(f"  x is {source}:")
            lines += [cost.line() for cost in self.costs if cost.way.source == source]
        return lines


def _call(way: Way, tensor: Tensor) -> stopwatch.Call:
    def call() -> Iterator[None]:
        yield
        result = way.convert(tensor)
        yield
        del result  # giving its memory back is no part of the conversion

    return call

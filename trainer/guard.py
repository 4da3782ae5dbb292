"""Keeps non-finite steps away from the weights, the momentum and batch norm's running statistics.

All decisions are taken on the device; the host reads them on logged steps and before saves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

# A dynamic loss scale halves at each skip: from 65536 it would reach 1 after 16 in a row.
LONGEST_ROW = 20
_ALIGNMENT = 64  # elements between buffers in the flat copy: cuDNN wants aligned running statistics


@dataclass(frozen=True)
class GuardReport:
    """Host copy of the guard's counts since the start of the run's process (or the loaded state)."""

    skipped: int
    longest_row: int
    first_bad_step: int  # -1: none
    last_bad_step: int  # likewise


class StepGuard:
    """Judges each step. ``sticky``: after the first bad step every later one is bad too, until the
    host reads it and ends the run; without it (dynamic loss scale) bad steps are only counted."""

    def __init__(self, device: torch.device, sticky: bool) -> None:
        self.sticky = sticky
        self._skipped = torch.zeros((), device=device)
        self._row = torch.zeros((), device=device)
        self._longest = torch.zeros((), device=device)
        self._first = torch.full((), -1.0, device=device)
        self._last = torch.full((), -1.0, device=device)

    @torch.no_grad()
    def judge(self, grad_norm: Tensor, step: int) -> Tensor:
        """1.0 where step ``step`` must not reach the weights, else 0.0 (device scalar).

        A bad loss is in ``grad_norm`` already (see ``poison``), and so is any other rank's, since
        the reduction of the gradients carries a NaN to every rank.
        """
        bad = (~torch.isfinite(grad_norm)).float()
        if self.sticky:
            bad = torch.maximum(bad, (self._first >= 0).float())
        self._first = torch.where((bad > 0) & (self._first < 0), float(step), self._first)
        self._last = torch.where(bad > 0, float(step), self._last)
        self._skipped = self._skipped + bad
        self._row = (self._row + 1) * bad
        self._longest = torch.maximum(self._longest, self._row)
        return bad

    def report(self) -> GuardReport:
        """Read the counts; waits for the device."""
        values = torch.stack([self._skipped, self._longest, self._first, self._last]).tolist()
        return GuardReport(*(int(value) for value in values))

    def restore_skipped(self, skipped: int) -> None:
        """Go on counting where a checkpoint left off."""
        self._skipped.fill_(float(skipped))


def poison(loss: Tensor) -> Tensor:
    """``loss``, or NaN with NaN gradients everywhere if it is not finite.

    An infinite loss can have finite gradients; multiplied by NaN it cannot, and the gradient
    reduction of DistributedDataParallel then tells every rank without a collective of its own.
    """
    return loss * torch.where(torch.isfinite(loss.detach()), 1.0, float("nan"))


class BufferGuard:
    """Last good copy of a model's buffers (running statistics), which a forward pass changes.

    The buffers of each dtype are moved into one flat tensor and become views of it, so that keeping
    or restoring them all is one operation instead of one a buffer.
    """

    def __init__(self, model: nn.Module) -> None:
        self._flat: list[Tensor] = []
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for buffer in model.buffers():
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        for dtype, buffers in by_dtype.items():
            sizes = [-(-buffer.numel() // _ALIGNMENT) * _ALIGNMENT for buffer in buffers]
            flat = torch.zeros(sum(sizes), dtype=dtype, device=buffers[0].device)
            offset = 0
            for buffer, size in zip(buffers, sizes, strict=True):
                view = flat[offset : offset + buffer.numel()].as_strided(buffer.shape, _dense_strides(buffer), offset)
                view.copy_(buffer)
                buffer.data = view
                offset += size
            self._flat.append(flat)
        self._good = [flat.clone() for flat in self._flat]

    @torch.no_grad()
    def settle(self, bad: Tensor) -> None:
        """Keep the new buffers as good, or bring the last good ones back where ``bad`` > 0."""
        for flat, good in zip(self._flat, self._good, strict=True):
            flat.copy_(torch.where(bad > 0, good, flat))
            good.copy_(flat)

    @torch.no_grad()
    def accept(self) -> None:
        """Take the present buffers as good (after loading a checkpoint)."""
        for flat, good in zip(self._flat, self._good, strict=True):
            good.copy_(flat)


def _dense_strides(buffer: Tensor) -> tuple[int, ...]:
    return torch.empty_like(buffer).stride()

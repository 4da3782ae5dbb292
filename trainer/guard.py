"""Keeps non-finite steps away from the weights, the momentum and batch norm's running statistics.

All decisions are taken on the device; the host reads them on logged steps and before saves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

# A dynamic loss scale halves at each skip: from 65536 it would reach 1 after 16 in a row.
LONGEST_ROW = 20
MOST_LISTED = 64
_ALIGNMENT = 64  # elements between buffers in the flat copy: cuDNN wants aligned running statistics


@dataclass(frozen=True)
class GuardReport:
    """Host copy of the guard's counts since the start of the run's process (or the loaded state).

    ``row``: bad steps in a row up to now. ``own``: the first ``MOST_LISTED`` steps with a non-finite norm of their own, not
    those that are bad for what came before them. Steps are -1 where there was no bad one; rates are those these steps had.
    """

    skipped: int
    row: int
    longest_row: int
    first_bad_step: int
    first_bad_lr: float
    last_bad_step: int
    last_bad_lr: float
    own: tuple[int, ...] = ()


class StepGuard:
    """Judges each step. ``sticky``: after the first bad step every later one is bad too, until the
    host reads it and ends the run; without it (dynamic loss scale) bad steps are only counted."""

    def __init__(self, device: torch.device, sticky: bool) -> None:
        self.sticky = sticky
        self._skipped = torch.zeros((), device=device)
        self._row = torch.zeros((), device=device)
        self._longest = torch.zeros((), device=device)
        self._first = torch.full((2,), -1.0, device=device)  # step, learning rate
        self._last = torch.full((2,), -1.0, device=device)
        self._own = torch.full((MOST_LISTED,), -1.0, device=device)
        self._own_count = torch.zeros((), device=device)
        self._places = torch.arange(MOST_LISTED, device=device)

    @torch.no_grad()
    def judge(self, grad_norm: Tensor, step: int, lr: float) -> Tensor:
        """1.0 where step ``step`` must not reach the weights, else 0.0 (device scalar).

        A bad loss is in ``grad_norm`` already (see ``poison``), and so is any other rank's, since
        the reduction of the gradients carries a NaN to every rank. A norm that overflows float32
        (above 1e19) counts as non-finite too.
        """
        bad = own = (~torch.isfinite(grad_norm)).float()
        if self.sticky:
            bad = torch.maximum(bad, (self._first[0] >= 0).float())
        here = torch.stack([torch.full_like(bad, float(step)), torch.full_like(bad, lr)])
        self._first = torch.where((bad > 0) & (self._first[0] < 0), here, self._first)
        self._last = torch.where(bad > 0, here, self._last)
        self._own = torch.where((self._places == self._own_count) & (own > 0), here[0], self._own)
        self._own_count = self._own_count + own
        self._skipped = self._skipped + bad
        self._row = (self._row + 1) * bad
        self._longest = torch.maximum(self._longest, self._row)
        return bad

    def report(self) -> GuardReport:
        """Read the counts; waits for the device."""
        counts = torch.stack([self._skipped, self._row, self._longest])
        values = torch.cat([counts, self._first, self._last, self._own]).tolist()
        skipped, row, longest, first, first_lr, last, last_lr, *own = values
        listed = tuple(int(step) for step in own if step >= 0)
        return GuardReport(int(skipped), int(row), int(longest), int(first), first_lr, int(last), last_lr, listed)

    def restore(self, skipped: int, row: int) -> None:
        """Go on counting where a checkpoint left off, with no bad step known."""
        self._skipped.fill_(float(skipped))
        self._row.fill_(float(row))
        self._longest.fill_(float(row))
        self._first.fill_(-1.0)
        self._last.fill_(-1.0)
        self._own.fill_(-1.0)
        self._own_count.zero_()


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
        self._places: list[tuple[nn.Module, str, Tensor]] = []  # module, name, view into the flat copy
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for buffer in model.buffers():
            by_dtype.setdefault(buffer.dtype, []).append(buffer)
        for dtype, buffers in by_dtype.items():
            sizes = [-(-buffer.numel() // _ALIGNMENT) * _ALIGNMENT for buffer in buffers]
            flat = torch.zeros(sum(sizes), dtype=dtype, device=buffers[0].device)
            offset = 0
            for buffer, size in zip(buffers, sizes, strict=True):
                view = flat.as_strided(buffer.shape, torch.empty_like(buffer).stride(), offset)
                view.copy_(buffer)
                buffer.data = view
                offset += size
            self._flat.append(flat)
        for module in model.modules():
            self._places += [(module, name, buffer) for name, buffer in module.named_buffers(recurse=False)]
        self._good = [flat.clone() for flat in self._flat]

    @torch.no_grad()
    def settle(self, bad: Tensor) -> None:
        """Keep the new buffers as good, or bring the last good ones back where ``bad`` > 0."""
        self._take_back_replaced()
        for flat, good in zip(self._flat, self._good, strict=True):
            flat.copy_(torch.where(bad > 0, good, flat))
            good.copy_(flat)

    @torch.no_grad()
    def accept(self) -> None:
        """Take the present buffers as good (after loading a checkpoint)."""
        self._take_back_replaced()
        for flat, good in zip(self._flat, self._good, strict=True):
            good.copy_(flat)

    @torch.no_grad()
    def copy(self) -> list[Tensor]:
        """The present buffers."""
        self._take_back_replaced()
        return [flat.clone() for flat in self._flat]

    @torch.no_grad()
    def put_back(self, before: list[Tensor]) -> None:
        """Make ``before``, a result of ``copy``, the present buffers."""
        self._take_back_replaced()
        for flat, old in zip(self._flat, before, strict=True):
            flat.copy_(old)

    def _take_back_replaced(self) -> None:
        """A forward pass that assigns a new tensor to a buffer leaves the flat copy: bring it back."""
        for module, name, buffer in self._places:
            present = module._buffers.get(name)
            if present is not buffer and present is not None and present.shape == buffer.shape:
                buffer.copy_(present.detach())
                module._buffers[name] = buffer

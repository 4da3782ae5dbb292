"""Agreement between ranks at step boundaries, without waiting for the device.

Each boundary reads the exchange that the boundary before it has started, and starts the next one, so that a
decision takes one step to reach every rank and all of them act on it at the same boundary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.distributed import FAREWELL_SECONDS, Group


@dataclass(frozen=True)
class Decision:
    """What all ranks do at a boundary. ``stop``: the heaviest reason any rank has, 0 for none; ``save``: rank 0
    finds a save due; ``busy``: some rank had work left."""

    stop: int = 0
    save: bool = False
    busy: bool = True


class Agreement:
    """Exchanges over a gloo group of its own; in a world of one a boundary decides at once, on its own values.

    Every rank makes one at the same point, and passes the same number of boundaries: one with less to do passes
    the others' with ``busy=False`` until a decision says that nobody is.
    """

    def __init__(self, group: Group) -> None:
        self._is_main = group.is_main
        self._group = group.new_host_group()
        self._pending: tuple[Any, Tensor] | None = None
        if self._group is not None:
            group.at_close(self._join)

    def boundary(self, stop: int, save: bool, busy: bool = True) -> Decision:
        """``stop``: this rank's reason (0: none); ``save``: counts on rank 0 alone. Raises RuntimeError where
        another rank has ended or does not answer within the group's timeout."""
        own = Decision(stop, save and self._is_main, busy)
        if self._group is None:
            return own
        agreed = self._result()
        if not agreed.stop and agreed.busy:
            # A save that is about to be made answers rank 0's clock: asked again, it would be made twice.
            self._begin(replace(own, save=own.save and not agreed.save))
        return agreed

    def _begin(self, own: Decision) -> None:
        values = torch.tensor([own.stop, own.save, own.busy], dtype=torch.int64)
        work = dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group, async_op=True)
        self._pending = work, values

    def _result(self) -> Decision:
        """Of the exchange under way; where there is none, every rank goes on."""
        if self._pending is None:
            return Decision()
        work, values = self._pending
        work.wait()
        self._pending = None
        stop, save, busy = values.tolist()
        return Decision(stop, bool(save), bool(busy))

    def _join(self) -> None:
        """End the exchange under way, which every rank has started; a group must not go while one is open."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending[0].wait(timedelta(seconds=FAREWELL_SECONDS))

"""What the loop passes between two steps and between two batches of validation: is the run asked to stop, or to save?"""

from __future__ import annotations

from trainer.agreement import Agreement, Decision
from trainer.distributed import Group
from trainer.signals import StopReason, StopSignals, stop_reason


class Boundary:
    """Signals of this process, agreed upon by all ranks. Every rank passes the same boundaries."""

    def __init__(self, group: Group) -> None:
        self.signals = StopSignals()
        self.reason: StopReason | None = None  # once the run is asked to stop; the same on every rank
        self._agreement = Agreement(group)

    def cross(self, save: bool = False, busy: bool = True) -> Decision:
        """``save``: whether a save is due by this rank's clock; ``busy``: whether this rank has work left."""
        decision = self._agreement.boundary(self.signals.code, save, busy)
        self.reason = stop_reason(decision.stop)
        return decision

    def wait_for_others(self) -> None:
        """Cross boundaries without work until no rank has any, or until the run is asked to stop."""
        while True:
            decision = self.cross(busy=False)
            if decision.stop or not decision.busy:
                return

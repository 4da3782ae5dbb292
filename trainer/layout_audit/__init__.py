"""Which op in which module drops channels-last, in forward, backward and optimizer step."""

from trainer.layout_audit.audit import LayoutAudit
from trainer.layout_audit.records import LayoutLost, LostOp
from trainer.layout_audit.watch import audit_layout

__all__ = ["LayoutAudit", "LayoutLost", "LostOp", "audit_layout"]

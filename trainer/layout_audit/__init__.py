"""Which op in which module drops channels-last, in forward, backward and optimizer step."""

from trainer.layout_audit.audit import LayoutAudit, audit_layout
from trainer.layout_audit.records import LayoutLost, LostOp

__all__ = ["LayoutAudit", "LayoutLost", "LostOp", "audit_layout"]

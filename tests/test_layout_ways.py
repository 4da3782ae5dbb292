"""The audit follows a channels-last image through preallocated tensors and through views of another rank."""

from __future__ import annotations

import pytest
import torch
from layout_ways import HELD, LOST

from trainer.layout_audit import LayoutAudit, audit_layout

CL = torch.channels_last


def audited(way: object) -> tuple[LayoutAudit, torch.Tensor]:
    x = torch.randn(2, 8, 6, 6, generator=torch.Generator().manual_seed(0)).to(memory_format=CL).requires_grad_()
    with audit_layout() as audit:
        out = way(x * 1)  # type: ignore[operator]
        if out.requires_grad:
            out.backward(torch.ones(out.shape).to(memory_format=CL))
    return audit, out


@pytest.mark.parametrize("name", LOST)
def test_a_loss_on_the_way_is_named_once(name: str) -> None:
    way, op = LOST[name]
    audit, out = audited(way)
    lost = [one for one in audit.lost if one.where.pass_name != "backward"]
    assert len(lost) == 1
    assert lost[0].op.startswith(op)
    assert lost[0].where.line.split(":")[0].endswith(("layout_ways.py", "functional.py"))
    assert sum(counts.lost for counts in audit.counts.values()) == len(audit.lost)
    if "circular" not in name:
        assert not out.is_contiguous(memory_format=CL)
        assert lost[0].lost_bytes >= x_bytes(out) // 2


def x_bytes(out: torch.Tensor) -> int:
    return out.numel() * out.element_size()


@pytest.mark.parametrize("name", HELD)
def test_nothing_is_reported_where_nothing_is_lost(name: str) -> None:
    audit, _ = audited(HELD[name])
    assert [(one.op, one.where.pass_name, one.where.line) for one in audit.lost] == []

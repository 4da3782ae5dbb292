"""Backward ops of the audit are named by the module and line of their forward op."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import layout_models as planted
import pytest
import torch
from test_layout_audit import audited, images
from torch import Tensor, nn

from trainer.layout_audit import audit_layout, where

CL = torch.channels_last


@pytest.mark.parametrize(
    ("op", "of"),
    [
        (lambda x, w: nn.functional.conv2d(x, w), "convolution"),
        (lambda x, w: x * x.detach(), "mul.Tensor"),
        (lambda x, w: x.relu(), "relu"),
        (lambda x, w: torch.cat([x, x], 1), "cat"),
    ],
    ids=["conv", "mul", "relu", "cat"],
)
def test_backward_ops_are_traced_to_their_forward_op(
    op: Callable[..., Tensor], of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[where.Where] = []
    now = where.Locator.now
    monkeypatch.setattr(where.Locator, "now", lambda self, name: seen.append(now(self, name)) or seen[-1])
    x, weight = images(4).requires_grad_(), torch.randn(4, 4, 3, 3, requires_grad=True)
    with audit_layout():
        written = op(x, weight)
        written.sum().backward()
    line = inspect.currentframe().f_lineno - 2  # type: ignore[union-attr]
    (place,) = {one for one in seen if one.pass_name == "backward" and one.of == of}
    assert place.line.startswith(f"{__file__}:")
    assert place.line != f"{__file__}:{line}"  # of the op, not of backward()


def test_backward_lines_are_unknown_without_the_private_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.autograd, "_get_sequence_nr")
    monkeypatch.delattr(torch._C, "_current_autograd_node")
    assert (where.next_sequence_number(), where.current_node()) == (None, None)
    forward, backward = audited(planted.Model(planted.Shuffle())).lost
    assert forward.where.module == "stage.0"
    assert (backward.where.pass_name, backward.where.module, backward.where.line) == ("backward", "unknown", "unknown")


def test_gradient_accumulation_is_named() -> None:
    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 1
            return y * 3 + planted.Backward.InNCHW.apply(y)

    x, model = images().requires_grad_(), Twice()
    with audit_layout(model) as audit:
        model(x).backward(images())
    clone, summed = audit.lost  # the gradient of what ran last comes first, and decides the sum's order
    assert (clone.op, clone.where.of) == ("clone", "mul.Tensor")
    assert (summed.op, summed.where.of, summed.where.pass_name) == ("add.Tensor", where.ACCUMULATION, "backward")


def test_a_sum_in_a_backward_pass_of_ones_own_is_no_accumulation() -> None:
    class Shifted(planted.Doubled):
        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return torch.zeros(gradient.shape) + gradient

    with audit_layout() as audit:
        Shifted.apply(images().requires_grad_() * 1).backward(images())
    (lost,) = audit.lost
    assert (lost.op, lost.where.pass_name) == ("add.Tensor", "backward")
    assert lost.where.of != where.ACCUMULATION
    assert lost.where.line == f"{__file__}:{Shifted.backward.__code__.co_firstlineno + 2}"


def test_recomputed_forward_ops_count_as_backward() -> None:
    from torch.utils.checkpoint import checkpoint

    part = planted.Model(planted.Shuffle()).to(memory_format=CL)
    with audit_layout(part) as audit:
        checkpoint(part, images().requires_grad_(), use_reentrant=False).sum().backward()
    assert [lost.where.pass_name for lost in audit.lost] == ["forward", "backward", "backward"]
    assert {lost.where.module for lost in audit.lost} == {"stage.0"}

"""One training step, or one evaluation, of a real model under the audit; and compiled against eager."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trainer.layout_audit.audit import LayoutAudit
from trainer.layout_audit.state import StateTensor, wrong_gradients, wrong_optimizer_state, wrong_parameters
from trainer.layout_audit.watch import audit_layout
from trainer.memory_format import stride_order
from trainer.models import TrainingLoss, main_output
from trainer.precision import Precision


@dataclass
class Findings:
    """``differences``: tensors whose order ``torch.compile`` changed, as (name, eager strides, compiled strides)."""

    audit: LayoutAudit
    state: list[StateTensor] = field(default_factory=list)
    differences: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.audit.lost or self.audit.refused or self.state or self.differences)


def audit_training_step(
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    precision: Precision,
    optimizer: torch.optim.Optimizer,
    criterion: nn.Module | None = None,
) -> Findings:
    """Forward, loss, backward and optimizer step on ``batch``: images (N, C, H, W) in the model's format, target (N,).

    The model and the optimizer change as in any step. An op that refuses channels-last ends the step and is
    among the findings; any other exception passes.
    """
    model.train()
    images, target = batch
    criterion = criterion or TrainingLoss()
    state = wrong_parameters(model)
    try:
        with audit_layout(model) as audit:
            with precision.autocast():
                output = model(images)
            precision.backward(criterion(output, target))
            state += wrong_gradients(model)
            norm = precision.collect_gradients()
            precision.step(optimizer, norm, torch.zeros_like(norm), None)
            state += wrong_optimizer_state(model, optimizer)
    except RuntimeError:
        if not audit.refused:
            raise
    return Findings(audit, state)


@torch.no_grad()
def audit_evaluation(model: nn.Module, images: Tensor, precision: Precision) -> Findings:
    """A forward pass in evaluation mode on images (N, C, H, W)."""
    model.eval()
    try:
        with audit_layout(model) as audit, precision.autocast():
            main_output(model(images))
    except RuntimeError:
        if not audit.refused:
            raise
    return Findings(audit, wrong_parameters(model))


def compare_compiled(
    model: nn.Module, batch: tuple[Tensor, Tensor], precision: Precision
) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Output, input gradient and parameter gradients whose order under ``torch.compile`` differs from eager's: name and
    both strides, empty on the side that has no such tensor.

    Two copies of the model take a pass each, outside any dispatch mode, under which compiled code would run eagerly.
    """
    eager = _strides(copy.deepcopy(model), batch, precision, compiled=False)
    compiled = _strides(copy.deepcopy(model), batch, precision, compiled=True)
    found = []
    for name in {**eager, **compiled}:
        one, other = eager.get(name), compiled.get(name)
        if one is None or other is None or stride_order(one) != stride_order(other):
            found.append((name, _stride(one), _stride(other)))
    return found


def _stride(tensor: Tensor | None) -> tuple[int, ...]:
    return () if tensor is None else tuple(tensor.stride())


def _strides(model: nn.Module, batch: tuple[Tensor, Tensor], precision: Precision, compiled: bool) -> dict[str, Tensor]:
    model.train().zero_grad(set_to_none=True)
    images, target = batch[0].detach().clone().requires_grad_(), batch[1]
    run: Any = torch.compile(model) if compiled else model
    with precision.autocast():
        output = run(images)
    TrainingLoss()(output, target).backward()
    found = {"output": main_output(output), "input gradient": images.grad}
    found.update((f"gradient of {name}", parameter.grad) for name, parameter in model.named_parameters())
    return {name: tensor for name, tensor in found.items() if tensor is not None}

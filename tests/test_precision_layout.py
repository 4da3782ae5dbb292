"""Weights, gradients, masters and momentum of every level lie in one order."""

from __future__ import annotations

import pytest
import torch
from level_steps import build, take
from torch import nn
from toy_models import odd_ranks, tiny

from trainer.memory_format import apply_to_model, apply_to_optimizer_state, check_stride_orders

CPU = torch.device("cpu")


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("channels_last", [True, False])
def test_weights_gradients_masters_and_momentum_lie_in_the_same_order(level, channels_last):
    stepper = build(level, channels_last=channels_last, factory=odd_ranks)
    stepper.precision.backward(stepper.model(torch.randn(4, 3, 16, 16).to(stepper.precision.input_dtype)).float().sum())
    stepper.precision.collect_gradients()
    check_stride_orders(stepper.optimizer)
    for parameter in stepper.optimizer.param_groups[0]["params"]:
        if parameter.dim() == 4:
            asked = torch.channels_last if channels_last else torch.contiguous_format
            for tensor in (parameter, parameter.grad, stepper.optimizer.state[parameter]["momentum_buffer"]):
                assert tensor.is_contiguous(memory_format=asked)


def test_contiguous_momentum_from_a_file_gives_the_unfused_step():
    """Fused SGD walks raw memory: momentum in another order is a wrong update without an error."""
    fused = build("O0")
    take(fused, 2)
    momentum = {name: fused.optimizer.state[p]["momentum_buffer"].clone() for name, p in fused.model.named_parameters()}
    plain = tiny(4)
    plain.load_state_dict({name: value.contiguous() for name, value in fused.model.state_dict().items()})
    reference = torch.optim.SGD(plain.parameters(), 0.1, 0.9, weight_decay=1e-4, foreach=False)
    for name, parameter in plain.named_parameters():
        reference.state[parameter]["momentum_buffer"] = momentum[name].contiguous()
    for parameter in fused.model.parameters():
        state = fused.optimizer.state[parameter]
        state["momentum_buffer"] = state["momentum_buffer"].contiguous()
    with pytest.raises(AssertionError, match="strides"):
        check_stride_orders(fused.optimizer)
    apply_to_optimizer_state(fused.optimizer)
    check_stride_orders(fused.optimizer)
    for stepper_model, optimizer in ((fused.model, fused.optimizer), (plain, reference)):
        stepper_model.train()
        torch.manual_seed(5)
        loss = nn.functional.cross_entropy(stepper_model(torch.randn(8, 3, 16, 16)), torch.arange(8) % 4)
        stepper_model.zero_grad()
        loss.backward()
        optimizer.step()
    for (name, ours), theirs in zip(fused.model.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5), name


def test_memory_formats_give_equal_results_within_tolerance():
    """R43, R44: every pair of model and batch format, in training and evaluation."""
    outputs = []
    for model_format in (torch.contiguous_format, torch.channels_last):
        for batch_format in (torch.contiguous_format, torch.channels_last):
            torch.manual_seed(0)
            model = apply_to_model(tiny(4), model_format)
            images = torch.randn(8, 3, 16, 16).to(memory_format=batch_format)
            train = model(images)
            outputs.append((train.detach(), model.eval()(images).detach()))
    for train, evaluated in outputs[1:]:
        assert torch.allclose(train, outputs[0][0], atol=1e-4)
        assert torch.allclose(evaluated, outputs[0][1], atol=1e-4)


def test_a_half_weight_in_another_order_than_its_master_is_noticed():
    stepper = build("O2")
    half = stepper.precision.masters[0][0]
    half.data = half.data.contiguous()
    check_stride_orders(stepper.optimizer)
    with pytest.raises(AssertionError, match="master"):
        check_stride_orders(stepper.optimizer, stepper.precision.masters)


def test_a_gradient_in_another_order_is_noticed_in_the_first_step():
    stepper = build("O0")

    def reorder(parameter: torch.Tensor) -> None:
        parameter.grad = parameter.grad.contiguous()

    stepper.model.features[0].weight.register_post_accumulate_grad_hook(reorder)
    with pytest.raises(AssertionError, match="gradient"):
        take(stepper)

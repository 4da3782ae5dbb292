"""The audit: each planted loss is named by op, module and line in both passes, and nothing else is."""

from __future__ import annotations

import inspect

import layout_models as planted
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from trainer.layout_audit import LayoutAudit, LayoutLost, audit_layout
from trainer.layout_audit.advice import ADVICE
from trainer.layout_audit.state import wrong_gradients, wrong_optimizer_state, wrong_parameters

CL = torch.channels_last


def images(channels: int = 3) -> Tensor:
    return torch.randn(2, channels, 6, 6, generator=torch.Generator().manual_seed(0)).to(memory_format=CL)


def audited(model: nn.Module) -> LayoutAudit:
    model.to(memory_format=CL)
    for module in model.modules():
        if isinstance(module, planted.Kind):
            module.nchw = module.nchw.contiguous()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with audit_layout(model) as audit:
        nn.functional.cross_entropy(model(images()), torch.tensor([0, 1])).backward()
        optimizer.step()
    return audit


def line_of(part: type) -> str:
    """``file:number`` of the line marked ``# lost`` in the class."""
    lines, start = inspect.getsourcelines(part)
    (found,) = [start + index for index, line in enumerate(lines) if "# lost" in line]
    return f"{planted.__file__}:{found}"


# part; (op, kind) lost in the forward pass; in the backward pass
PLANTED: list[tuple[type, list[tuple[str, str]], list[tuple[str, str]]]] = [
    (planted.Mixed, [("add.Tensor", "mixed_operands")], []),
    (planted.Cat, [("cat", "cat")], [("slice_backward", "slice_gradient")]),
    (planted.Shuffle, [("clone", "reshape")], [("clone", "reshape")]),
    (planted.Permuted, [("avg_pool2d", "permuted_input")], [("avg_pool2d_backward", "permuted_input")]),
    (planted.Contiguous, [("clone", "contiguous")], []),
    (planted.Pooling, [("fractional_max_pool2d", "pooling")], [("fractional_max_pool2d_backward", "pooling")]),
    (planted.Softmax, [("_softmax", "softmax")], [("_softmax_backward_data", "softmax")]),
    (planted.NoKernel, [("col2im", "no_kernel")], [("col2im", "no_kernel")]),
    (planted.Backward, [], [("clone", "contiguous")]),
    (planted.Keeps, [], []),
]


@pytest.mark.parametrize(("part", "forward", "backward"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_loss_is_named(part: type, forward: list[tuple[str, str]], backward: list[tuple[str, str]]) -> None:
    audit = audited(planted.Model(part()))
    assert [(lost.op, lost.kind) for lost in audit.lost if lost.where.pass_name == "forward"] == forward
    assert [(lost.op, lost.kind) for lost in audit.lost if lost.where.pass_name == "backward"] == backward
    for lost in audit.lost:
        assert lost.where.module == "stage.0"
        assert lost.where.line == line_of(part)
        assert lost.lost_bytes % (2 * 8 * 6 * 6 * 4) == 0
        assert lost.restored_by
    assert {name: counts.lost for name, counts in audit.counts.items()} == {
        "forward": len(forward), "outside": 0, "backward": len(backward), "optimizer": 0,
    }  # fmt: skip
    assert audit.counts["forward"].kept >= 5


def test_flatten_into_a_linear_layer_is_one_copy_that_nothing_restores() -> None:
    (lost,) = audited(planted.Model(planted.Keeps(), planted.Flatten())).lost
    assert (lost.op, lost.kind, lost.where.module) == ("clone", "flatten", "head")
    assert (lost.where.line, lost.restored_by) == (line_of(planted.Flatten), None)


def test_a_contiguous_gradient_of_an_in_place_op_is_traced_to_it() -> None:
    """Such an op makes its node, then copies its input under a node of its own, and only then runs."""
    (lost,) = audited(planted.Model(planted.Keeps(), planted.InPlaceHead())).lost
    assert (lost.op, lost.kind, lost.foreign) == ("hardtanh_backward", "gradient", ["grad_output"])
    assert (lost.where.pass_name, lost.where.module) == ("backward", "head")
    assert lost.where.line == line_of(planted.InPlaceHead)


def test_a_view_that_cannot_be_is_kept_with_the_place_where_it_raised() -> None:
    model = planted.Model(planted.Keeps(), planted.View()).to(memory_format=CL)
    with pytest.raises(RuntimeError, match="view size"), audit_layout(model) as audit:
        model(images())
    (refused,) = audit.refused
    assert (refused.op, refused.kind, refused.where.module) == ("view", "view", "head")
    assert refused.where.line == line_of(planted.View)
    assert "view size" in str(refused.error)


def test_an_error_that_is_not_about_strides_is_no_refusal() -> None:
    with pytest.raises(RuntimeError, match="too small"), audit_layout() as audit:
        nn.functional.avg_pool2d(images(), 9)
    assert audit.refused == []


def test_no_false_alarms() -> None:
    audit = audited(planted.Innocent())
    assert audit.lost == []
    assert all(audit.counts[name].kept for name in ("forward", "backward"))
    assert audit.counts["forward"].ambiguous


def test_the_foreign_operand_is_named_with_shape_stride_dtype_and_device() -> None:
    (lost,) = audited(planted.Model(planted.Mixed())).lost
    assert lost.foreign == ["self"]
    assert str(lost.operands[0]) == "self (2, 8, 6, 6) strides (288, 36, 6, 1) float32 cpu contiguous"
    assert str(lost.operands[1]) == "other (2, 8, 6, 6) strides (288, 1, 48, 8) float32 cpu channels_last"
    assert lost.restored_by == "convolution in last.0"
    (lost, _) = audited(planted.Model(planted.Cat())).lost
    assert lost.foreign == ["tensors[0]"]


def test_the_other_order_of_a_mixed_sum_keeps_the_format() -> None:
    x, y = images(), images().contiguous()
    with audit_layout() as audit:
        x + y
        torch.nn.functional.channel_shuffle(images(4), 2)
    assert [lost.op for lost in audit.lost] == []
    with audit_layout() as audit:
        y + x
    assert [lost.op for lost in audit.lost] == ["add.Tensor"]


def test_raise_names_op_and_module_at_the_first_loss_and_leaves_torch_as_it_was() -> None:
    hooks = (
        torch_module._global_forward_hooks,
        torch_module._global_forward_pre_hooks,
        torch_module._global_forward_hooks_always_called,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
    )
    before = [dict(one) for one in hooks]
    model = planted.Model(planted.Shuffle()).to(memory_format=CL)
    with (
        pytest.raises(LayoutLost, match=r"clone in stage\.0 lost channels_last in the forward pass") as caught,
        audit_layout(model, "raise"),
    ):
        model(images())
    assert caught.value.lost.operands[0].shape == (2, 4, 2, 6, 6)
    backward = planted.Model(planted.Backward()).to(memory_format=CL)
    with (
        pytest.raises(LayoutLost, match=r"clone in stage\.0 lost channels_last in the backward pass"),
        audit_layout(backward, "raise"),
    ):
        backward(images()).sum().backward()
    assert [dict(one) for one in hooks] == before
    assert _get_current_dispatch_mode_stack() == []
    model(images())  # no audit, no error


def test_results_are_bitwise_those_without_an_audit() -> None:
    def trained(watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = planted.Model(planted.Shuffle()).to(memory_format=CL)
        if watched:
            with audit_layout(model):
                model(images()).sum().backward()
        else:
            model(images()).sum().backward()
        return [parameter.grad for parameter in model.parameters()]  # type: ignore[misc]

    for one, other in zip(trained(True), trained(False), strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


def test_a_misspelt_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="record"), audit_layout(on_loss="ignore"):  # type: ignore[arg-type]
        pass


def test_every_kind_has_advice() -> None:
    for part, forward, backward in PLANTED:
        assert {kind for _, kind in (*forward, *backward)} <= set(ADVICE), part


def test_the_operations_of_the_tutorial_keep_the_format_and_its_exception_names_more() -> None:
    """What PyTorch's channels-last tutorial shows to keep the format does; where its checker raises, so does ours."""
    x = torch.empty(10, 3, 32, 32).fill_(1).to(memory_format=CL)
    convolution = nn.Conv2d(8, 4, 3).to(memory_format=CL)
    batch = torch.randint(1, 10, (2, 8, 4, 4), dtype=torch.float32).to(memory_format=CL).requires_grad_()
    special = torch.empty(4, 1, 4, 4)
    with audit_layout(on_loss="raise") as audit:
        assert x.clone().stride() == (3072, 1, 96, 3)
        torch.empty_like(x), x.double(), x + x.clone(), special.contiguous() * 2  # noqa: B018
        assert convolution(batch).is_contiguous(memory_format=CL)
    assert (audit.lost, audit.counts["forward"].kept, audit.counts["outside"].kept) == ([], 1, 5)
    text = r"clone in outside lost channels_last.*float32 cpu"
    with pytest.raises(LayoutLost, match=text) as caught, audit_layout(on_loss="raise"):
        x.contiguous()
    assert caught.value.lost.where.line.startswith(__file__)
    assert caught.value.lost.operands[0].stride == (3072, 1, 96, 3)


def test_state_in_another_order_is_found() -> None:
    model = nn.Conv2d(4, 4, 3)
    (parameter,) = wrong_parameters(model)
    assert (parameter.name, parameter.what, parameter.found) == ("weight", "parameter", "contiguous")
    model.to(memory_format=CL)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(images(4)).sum().backward()
    optimizer.step()
    assert wrong_parameters(model) == wrong_gradients(model) == wrong_optimizer_state(model, optimizer) == []
    model.weight.grad = model.weight.grad.contiguous()
    (gradient,) = wrong_gradients(model)
    assert gradient.found == "contiguous, the parameter channels_last"
    state = optimizer.state[model.weight]
    state["momentum_buffer"] = state["momentum_buffer"].contiguous()
    (momentum,) = wrong_optimizer_state(model, optimizer)
    assert (momentum.name, momentum.what) == ("weight", "momentum_buffer")


def test_the_stride_of_a_convolution_is_the_users_own_mistake() -> None:
    images = torch.rand(2, 3, 6, 6).to(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="stride"), audit_layout() as audit:
        torch.nn.functional.conv2d(images, torch.ones(4, 3, 1, 1), stride=0)
    assert audit.refused == []


def test_a_grid_is_no_image() -> None:
    images = torch.rand(2, 4, 6, 6).to(memory_format=torch.channels_last).requires_grad_()
    grid = (2 * torch.rand(2, 6, 6, 2) - 1).requires_grad_()
    with audit_layout() as audit:
        torch.nn.functional.grid_sample(images, grid, align_corners=False).sum().backward()
    assert all("grid" not in lost.foreign for lost in audit.lost)
    backward = [lost for lost in audit.lost if "backward" in lost.op]
    assert backward
    assert sum(lost.lost_bytes for lost in backward) == images.numel() * 4

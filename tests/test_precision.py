"""O0..O3: dtypes, loss scale, masters, clipping, and what the start prints of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from toy_models import odd_ranks, tiny

from trainer.banner import real_dtypes
from trainer.distributed import Group, Ranks
from trainer.levels import DTYPES, level_options, override_options
from trainer.memory_format import apply_to_model, apply_to_optimizer_state, check_stride_orders, stride_order
from trainer.metrics import RunningSums
from trainer.optim import build_optimizer
from trainer.precision import Precision
from trainer.profiling import StepProfiler
from trainer.step import Stepper
from trainer.timing import Clock, StepTimer

CPU = torch.device("cpu")
README = Path(__file__).parent.parent / "README.md"


def build(level, dtype="bfloat16", keep=None, scale=None, channels_last=True, clip=None, factory=tiny):
    torch.manual_seed(0)
    half = DTYPES[dtype]
    precision = Precision(override_options(level_options(level, half), keep, scale), half, CPU)
    model = factory(4)
    apply_to_model(model, torch.channels_last if channels_last else torch.contiguous_format)
    precision.convert_model(model).train()
    optimizer = build_optimizer(precision.bind(model), 0.1, 0.9, 1e-4, CPU)
    return Stepper(model, model, optimizer, precision, Group(Ranks(), CPU), clip_grad_norm=clip)


def take(stepper, steps=1, seed=1):
    """Some steps on fixed random images; returns the norm of the last."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        images = torch.randn(8, 3, 16, 16, generator=generator).to(memory_format=torch.channels_last)
        batches = iter([(images.to(stepper.precision.input_dtype), torch.arange(8) % 4)])
        plan = type("Plan", (), {"images": 8, "batch_sizes": (8,)})()
        timer = StepTimer(Clock(CPU), 0, 1)
        stepper.step(step, plan, batches, 0.1, RunningSums(CPU), timer, StepProfiler(None, None, CPU))
    return stepper.health().grad_norm


@pytest.mark.parametrize(
    ("level", "conv", "norm", "master", "images"),
    [
        ("O0", torch.float32, torch.float32, False, torch.float32),
        ("O1", torch.float32, torch.float32, False, torch.float32),
        ("O2", torch.bfloat16, torch.float32, True, torch.bfloat16),
        ("O3", torch.bfloat16, torch.bfloat16, False, torch.bfloat16),
    ],
)
def test_dtypes_of_each_level(level, conv, norm, master, images):
    stepper = build(level)
    model, precision = stepper.model, stepper.precision
    assert model.features[0].weight.dtype is conv
    assert model.head.weight.dtype is conv
    assert {model.features[1].weight.dtype, model.features[1].running_var.dtype} == {norm}
    assert precision.input_dtype is images
    stepped = stepper.optimizer.param_groups[0]["params"]
    assert all(p.dtype is torch.float32 for p in stepped) is (level != "O3")
    assert bool(precision.masters) is master
    before = [p.detach().clone() for p in stepped]
    take(stepper, 2)
    moved = [not torch.equal(p, b) for p, b in zip(stepped, before, strict=True)]
    # At O3 a small update of a weight near 1 is rounded away: what master weights are for.
    assert any(moved) if level == "O3" else all(moved)
    assert stepper.health().skipped_steps == 0


def test_o3_with_batch_norm_in_float32():
    stepper = build("O3", keep=True)
    assert stepper.model.features[1].weight.dtype is torch.float32
    assert stepper.model.features[0].weight.dtype is torch.bfloat16
    take(stepper, 2)


def test_o2_without_it():
    assert build("O2", keep=False).model.features[1].weight.dtype is torch.bfloat16


def test_o2_weights_are_its_masters_rounded():
    stepper = build("O2")
    take(stepper, 3)
    for half, master in stepper.precision.masters:
        assert torch.equal(half, master.to(torch.bfloat16))
        assert stride_order(half) == stride_order(master)


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


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_norm_and_update_do_not_depend_on_the_loss_scale(level, clip):
    """R29: the norm is unscaled before it is reported and before it clips; O3's half gradients too."""
    weights, norms = [], []
    for scale in (1.0, 65536.0):
        stepper = build(level, "bfloat16", scale=scale, clip=clip)
        norms.append(take(stepper))
        weights.append(torch.cat([p.detach().float().flatten() for p in stepper.optimizer.param_groups[0]["params"]]))
        assert stepper.health().skipped_steps == 0
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    assert (weights[0] - weights[1]).abs().max() < 2e-3


def test_clipping_bounds_the_update():
    free, clipped = build("O0"), build("O0", clip=1e-3)
    start = [p.detach().clone() for p in free.model.parameters()]
    norm = take(free)
    assert take(clipped) == pytest.approx(norm)

    def moved(stepper):
        # Weight decay moves the weights too: take its share out.
        parts = [p.detach() - s + 0.1 * 1e-4 * s for p, s in zip(stepper.model.parameters(), start, strict=True)]
        return torch.cat([part.flatten() for part in parts]).norm().item()

    assert moved(free) == pytest.approx(0.1 * norm, rel=1e-3)
    assert moved(clipped) == pytest.approx(0.1 * 1e-3, rel=1e-2)


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


def test_bfloat16_has_scale_1_at_every_level():
    assert {level_options(level, torch.bfloat16).loss_scale for level in ("O0", "O1", "O2", "O3")} == {1.0}


def test_option_table_of_each_level_is_that_of_the_readme():
    """Rows of README's table: option | O0 | O1 | O2 | O3, for float16."""
    rows = dict(re.findall(r"^\| (\w+) +\| (.*) \|$", README.read_text().split("## Precision")[1], re.MULTILINE))
    for field in ("cast_model_type", "patch_torch_functions", "keep_batchnorm_fp32", "master_weights", "loss_scale"):
        cells = [cell.strip() for cell in rows[field].split("|")]
        ours = [
            str(getattr(level_options(level, torch.float16), field)).removeprefix("torch.")
            for level in ("O0", "O1", "O2", "O3")
        ]
        assert cells == ours, field


def test_dtype_table_of_the_readme_is_what_the_model_has():
    section = README.read_text().split("## Precision")[1]
    for level in ("O0", "O1", "O2", "O3"):
        stepper = build(level, "float16")
        cells = next(line for line in section.splitlines() if line.startswith(f"| {level} |")).split("|")[2:-1]
        found = real_dtypes(stepper.precision, stepper.model, 16)
        assert [cell.strip() for cell in cells] == list(found.values())


def test_no_scaler_warning_on_a_cpu(recwarn):
    take(build("O2", "float16"))
    assert [str(warning.message) for warning in recwarn] == []


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


def test_float64_models_train_at_o0():
    stepper = build("O0", factory=lambda num_classes: tiny(num_classes).double())
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, 3, 16, 16, generator=generator, dtype=torch.float64)
    before = stepper.model.head.weight.detach().clone()
    plan = type("Plan", (), {"images": 8, "batch_sizes": (8,)})()
    timer = StepTimer(Clock(CPU), 0, 1)
    batches = iter([(images, torch.arange(8) % 4)])
    stepper.step(0, plan, batches, 0.1, RunningSums(CPU), timer, StepProfiler(None, None, CPU))
    assert not torch.equal(before, stepper.model.head.weight)
    assert stepper.health().grad_norm > 0


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_gradients_are_reduced_once_a_step(level, tmp_path):
    """Two batches of accumulation, one reduction, in the dtype of the half gradients."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        stepper = build(level)
        stepper.wrapped = DistributedDataParallel(stepper.model, gradient_as_bucket_view=True)
        seen: list[torch.dtype] = []

        def counting(state, bucket):
            seen.append(bucket.buffer().dtype)
            return allreduce_hook(state, bucket)

        stepper.wrapped.register_comm_hook(None, counting)
        for _ in range(2):
            count = len(seen)
            images = torch.randn(8, 3, 16, 16).to(stepper.precision.input_dtype)
            batches = iter([(images[:4], torch.arange(4)), (images[4:], torch.arange(4))])
            plan = type("Plan", (), {"images": 8, "batch_sizes": (4, 4)})()
            timer = StepTimer(Clock(CPU), 0, 1)
            stepper.step(0, plan, batches, 0.1, RunningSums(CPU), timer, StepProfiler(None, None, CPU))
            # One bucket a dtype: half weights, and at O2 batch norm's float32.
            assert len(seen) - count == (2 if level == "O2" else 1)
        assert (torch.bfloat16 in seen) is (level == "O2")
    finally:
        dist.destroy_process_group()

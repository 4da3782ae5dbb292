"""O0..O3: dtypes, loss scale, masters, clipping, and what the start prints of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from level_steps import build, take
from toy_models import tiny

from trainer.banner import real_dtypes
from trainer.levels import level_options
from trainer.memory_format import stride_order
from trainer.metrics import RunningSums
from trainer.profiling import StepProfiler
from trainer.timing import Clock, StepTimer

CPU = torch.device("cpu")
PAGE = Path(__file__).parent.parent / "docs/precision.md"


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


def test_bfloat16_has_scale_1_at_every_level():
    assert {level_options(level, torch.bfloat16).loss_scale for level in ("O0", "O1", "O2", "O3")} == {1.0}


def test_option_table_of_each_level_is_that_of_the_page():
    """Rows of the page: option | O0 | O1 | O2 | O3, for float16."""
    rows = dict(re.findall(r"^\| (\w+) +\| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    for field in ("cast_model_type", "patch_torch_functions", "keep_batchnorm_fp32", "master_weights", "loss_scale"):
        cells = [cell.strip() for cell in rows[field].split("|")]
        ours = [
            str(getattr(level_options(level, torch.float16), field)).removeprefix("torch.")
            for level in ("O0", "O1", "O2", "O3")
        ]
        assert cells == ours, field


def test_dtype_table_of_the_page_is_what_the_model_has():
    section = PAGE.read_text().split("What the model then really has")[1]
    for level in ("O0", "O1", "O2", "O3"):
        stepper = build(level, "float16")
        cells = next(line for line in section.splitlines() if line.startswith(f"| {level} |")).split("|")[2:-1]
        found = real_dtypes(stepper.precision, stepper.model, 16)
        assert [cell.strip() for cell in cells] == list(found.values())


def test_no_scaler_warning_on_a_cpu(recwarn):
    take(build("O2", "float16"))
    assert [str(warning.message) for warning in recwarn] == []


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

"""A non-finite step never reaches weights, momentum or batch-norm statistics, at any level."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from trainer.guard import BufferGuard, StepGuard, poison

LEVELS = [
    ("O0",),
    ("O1", "--amp-dtype", "bfloat16"),
    ("O2", "--amp-dtype", "bfloat16"),
    ("O3", "--amp-dtype", "float16"),
    ("O1", "--amp-dtype", "float16", "--loss-scale", "128"),
]
DYNAMIC = [("O1", "--amp-dtype", "float16"), ("O2", "--amp-dtype", "float16")]


def load(path: str = "run") -> dict:
    return torch.load(Path(path, "checkpoints", "last.pt"), weights_only=True)


def finite(content: dict) -> bool:
    tensors = [*content["state_dict"].values(), *(entry["momentum_buffer"] for entry in content["optimizer"].values())]
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


@pytest.mark.parametrize("level", LEVELS, ids=" ".join)
@pytest.mark.parametrize("arch", ["nan_third", "inf_third"])
def test_a_fixed_scale_ends_with_exit_3_and_the_last_good_checkpoint(run, capsys, level, arch):
    assert run("--opt-level", *level, "--output-dir", "run", "--stop-after-steps", 2, "-a", f"toy_models:{arch}") == 0
    saved = load()
    capsys.readouterr()
    # The poisoned call is the third of a process: in the resumed one, steps 2 and 3 are good and 4 is bad.
    assert run("--resume", "run", "--epochs", 2, base="") == 3
    error = capsys.readouterr().err.strip()
    assert error.count("\n") == 0
    assert "step 4" in error
    assert "learning rate" in error
    assert "loss scale" in error
    assert json.loads(Path("run/status.json").read_text())["exit_code"] == 3
    after = load()
    assert after["step"] == 4  # the end of epoch 0, before the bad step
    assert saved["step"] == 2
    assert finite(after)


@pytest.mark.parametrize("level", [*LEVELS, *DYNAMIC], ids=" ".join)
def test_weights_momentum_and_statistics_stay_those_before_the_bad_step(level):
    """One step on good images, one on poisoned ones: nothing moves in the second, the first step included."""
    for good_steps in (0, 1):
        stepper, take = make_stepper(level)
        for _ in range(good_steps):
            take(1.0)
        before = state_of(stepper)
        take(float("nan"))
        for name, value in state_of(stepper).items():
            assert torch.equal(value, before[name]), f"{name} moved after {good_steps} good steps"
        if level in DYNAMIC or good_steps == 0:
            continue
        # Sticky: a good step after a bad one is skipped too, until the host has ended the run.
        take(1.0)
        for name, value in state_of(stepper).items():
            assert torch.equal(value, before[name])


@pytest.mark.parametrize("level", DYNAMIC, ids=" ".join)
def test_a_dynamic_scale_skips_counts_and_goes_on(run, level):
    """A skipped first step leaves no garbage in the momentum (fused SGD would make it with empty_like)."""
    assert run("--opt-level", *level, "-a", "toy_models:nan_first", "--output-dir", "run") == 0
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "step"]
    assert [row["skipped_steps"] for row in steps] == [1, 1, 1, 1]
    assert [row["loss_scale"] for row in steps] == [32768.0] * 4
    assert steps[0]["loss"] is None
    assert all(row["loss"] is not None for row in steps[1:])
    assert finite(load())
    (epoch,) = (row for row in rows if row["kind"] == "epoch")
    assert epoch["train_loss"] is None, "a mean over a NaN must not look like a number"


@pytest.mark.parametrize("level", DYNAMIC, ids=" ".join)
def test_twenty_skipped_steps_in_a_row_end_the_run(run, capsys, level):
    code = run("--opt-level", *level, "-a", "toy_models:nan_always", "--synthetic-size", 400, "--output-dir", "run")
    assert code == 3
    assert "in a row" in capsys.readouterr().err
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] <= 20


def test_o3_with_an_absurd_rate_ends_with_a_hint(run, capsys):
    code = run("--opt-level", "O3", "--amp-dtype", "float16", "--lr", "1e6", "--epochs", 8, "--lr-warmup-epochs", 0)
    assert code == 3
    assert "--opt-level O2" in capsys.readouterr().err


def test_an_infinite_loss_with_finite_gradients_is_bad():
    weight = torch.ones(3, requires_grad=True)
    loss = weight.sum() + torch.tensor(float("inf"))
    loss.backward(retain_graph=True)
    assert torch.isfinite(weight.grad).all()
    weight.grad = None
    poison(loss).backward()
    assert torch.isnan(weight.grad).all()


def test_an_infinite_loss_with_finite_gradients_ends_the_run(run, capsys):
    assert run("-a", "toy_models:infinite_loss_third", "--output-dir", "run") == 3
    assert "at step 2" in capsys.readouterr().err


def test_a_buffer_that_the_model_replaces_is_guarded_too():
    class Replacing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, value: torch.Tensor) -> None:
            self.mean = 0.5 * self.mean + value

    model = Replacing()
    guard = BufferGuard(model)
    model(torch.ones(3))
    guard.settle(torch.tensor(0.0))
    model(torch.full((3,), float("nan")))
    guard.settle(torch.tensor(1.0))
    assert torch.equal(model.mean, torch.ones(3))
    model(torch.ones(3))
    guard.settle(torch.tensor(0.0))
    assert torch.equal(model.mean, torch.full((3,), 1.5))


def test_a_finite_loss_is_left_alone():
    weight = torch.tensor([0.5, 2.0], requires_grad=True)
    poison((weight**2).sum()).backward()
    assert torch.equal(weight.grad, torch.tensor([1.0, 4.0]))


def test_guard_counts_rows_and_steps():
    guard = StepGuard(torch.device("cpu"), sticky=False)
    for step, norm in enumerate([1.0, float("nan"), float("inf"), 1.0, float("nan")]):
        guard.judge(torch.tensor(norm), step, 0.1 * step)
    report = guard.report()
    assert (report.skipped, report.longest_row, report.first_bad_step, report.last_bad_step) == (3, 2, 1, 4)
    assert (report.first_bad_lr, report.last_bad_lr) == (pytest.approx(0.1), pytest.approx(0.4))


def test_buffer_guard_restores_every_dtype_and_keeps_the_module_working():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(65)).train()
    guard = BufferGuard(model)
    model[0](torch.randn(4, 3, 2, 2))
    guard.settle(torch.tensor(0.0))
    kept = {name: tensor.clone() for name, tensor in model.named_buffers()}
    model[0](torch.full((4, 3, 2, 2), float("nan")))
    assert torch.isnan(model[0].running_mean).all()
    guard.settle(torch.tensor(1.0))
    for name, tensor in model.named_buffers():
        assert torch.equal(tensor, kept[name])
    assert int(model[0].num_batches_tracked) == 1


def make_stepper(level):
    """A stepper on the toy model, and a function that takes one step on images times a factor."""
    from toy_models import tiny

    from trainer.distributed import Group, Ranks
    from trainer.levels import DTYPES, level_options, override_options
    from trainer.metrics import RunningSums
    from trainer.optim import build_optimizer
    from trainer.precision import Precision
    from trainer.profiling import StepProfiler
    from trainer.step import Stepper
    from trainer.timing import Clock, StepTimer

    name, *flags = level
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    device = torch.device("cpu")
    torch.manual_seed(0)
    half = DTYPES[given.get("--amp-dtype", "bfloat16")]
    scale = float(given["--loss-scale"]) if "--loss-scale" in given else None
    precision = Precision(override_options(level_options(name, half), None, scale), half, device)
    model = precision.convert_model(tiny(4)).train()
    optimizer = build_optimizer(precision.bind(model), 0.1, 0.9, 1e-4, device)
    stepper = Stepper(model, model, optimizer, precision, Group(Ranks(), device))
    images, target = torch.randn(8, 3, 16, 16), torch.randint(0, 4, (8,))
    plan = type("Plan", (), {"images": 8, "batch_sizes": (8,)})()
    counter = iter(range(100))

    def take(factor: float) -> None:
        batches = iter([((images * factor).to(precision.input_dtype), target)])
        timer = StepTimer(Clock(device), 0, 1)
        stepper.step(next(counter), plan, batches, 0.1, RunningSums(device), timer, StepProfiler(None, None, device))

    return stepper, take


def state_of(stepper) -> dict[str, torch.Tensor]:
    masters = {f"master {i}": p.detach().clone() for i, p in enumerate(stepper.optimizer.param_groups[0]["params"])}
    momentum = {
        f"momentum {i}": entry["momentum_buffer"].clone() for i, entry in enumerate(stepper.optimizer.state.values())
    }
    return {**{name: tensor.clone() for name, tensor in stepper.model.state_dict().items()}, **masters, **momentum}

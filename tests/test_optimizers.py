"""``--opt``, weight decay by kind of parameter, ``--lr-min``, ``--val-every``, ``--early-stop``."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import torch
from helpers import load, rows
from test_exact_resume import SYNTHETIC
from test_no_sync import reads_of_each_step
from torch import nn
from toy_models import tiny

from trainer.config import TrainConfig
from trainer.engine import Engine
from trainer.optim import LRSchedule, build_optimizer, decay_groups
from trainer.validation import Scores, Validation

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adamw", "rmsprop"])
def test_steps_are_those_of_torchs_own_optimizer(name):
    torch.manual_seed(0)
    ours, theirs = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(4, 3))
    own = {
        "sgd": lambda: torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=1e-2),
        "nesterov": lambda: torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True),
        "adamw": lambda: torch.optim.AdamW([theirs], lr=0.1, weight_decay=1e-2),
        "rmsprop": lambda: torch.optim.RMSprop([theirs], 0.1, alpha=0.9, eps=0.0316, momentum=0.9, weight_decay=1e-2),
    }[name]()
    optimizers = build_optimizer([ours], 0.1, 0.9, 1e-2, CPU, name), own
    for _ in range(3):
        gradient = torch.randn(4, 3)
        for parameter, optimizer in zip((ours, theirs), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    assert torch.allclose(ours, theirs, rtol=1e-5)


def decays(model: nn.Module, decay: float, norm: float | None, bias: float | None) -> dict[str, float]:
    groups = decay_groups(model, list(model.parameters()), decay, norm, bias)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: group["weight_decay"] for group in groups for parameter in group["params"]}


def test_weight_decay_by_kind():
    model = tiny(4)
    assert set(decays(model, 0.1, None, None).values()) == {0.1}
    found = decays(model, 0.1, 0.2, None)
    assert found.pop("head.bias") == found.pop("head.weight") == found.pop("features.0.weight") == 0.1
    assert {found["features.1.weight"], found["features.1.bias"]} == {0.2}
    found = decays(model, 0.1, 0.2, 0.0)
    assert [name for name, decay in found.items() if decay == 0.0] == [
        "features.1.bias", "features.5.bias", "head.bias",
    ]  # fmt: skip
    assert found["features.1.weight"] == 0.2


def test_weight_decay_flags_act_on_the_masters(run):
    """Without a learning rate's worth of gradient, only decay moves weights: the norms stay, the others shrink."""
    flags = ["--opt-level", "O2", "--weight-decay", 200, "--norm-weight-decay", 0, "--bias-weight-decay", 0]
    assert run(*flags, "--lr", 0.01, "--momentum", 0, "--output-dir", "run") == 0
    state = load("run")["state_dict"]
    assert state["features.1.weight"].mean() == pytest.approx(1.0, abs=0.05)
    torch.manual_seed(0)
    assert state["features.0.weight"].norm() < 0.97 * tiny(4).state_dict()["features.0.weight"].norm()


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "O2 --amp-dtype float16", "O3 --amp-dtype float16"])
@pytest.mark.parametrize("name", ["nesterov", "adamw", "rmsprop"])
def test_stopped_and_resumed_is_not_stopped(run, name, level):
    lr = ["--lr", 0.01, "--norm-weight-decay", 0, "--channels-last"]
    flags = ["-a", "toy_models:dropping", "--opt", name, *lr, "--opt-level", *level.split()]
    assert run(*flags, "--output-dir", "straight", base=SYNTHETIC) == 0
    assert run(*flags, "--output-dir", "halves", "--stop-after-steps", 3, base=SYNTHETIC) == 0
    assert run("--resume", "halves", base="") == 0
    one, two = load("straight"), load("halves")
    for index, entry in one["optimizer"].items():
        for key, value in entry.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(two["optimizer"][index][key])), (index, key)
    assert all(torch.equal(value, two["state_dict"][name]) for name, value in one["state_dict"].items())


def test_the_files_order_is_the_models_however_parameters_are_grouped(run):
    """A run goes on with another weight decay for norms: the momentum of each parameter stays its own."""
    flags = ["--epochs", 2, "--lr", 1]
    assert run(*flags, "--output-dir", "straight") == 0
    assert run(*flags, "--stop-after-epochs", 1, "--output-dir", "halves") == 0
    assert run("--resume", "halves", "--norm-weight-decay", 1.001e-4, base="") == 0
    one, two = load("straight")["optimizer"], load("halves")["optimizer"]
    shapes = [parameter.shape for parameter in tiny(4).parameters()]
    assert [two[index]["momentum_buffer"].shape for index in sorted(two)] == shapes
    for index, entry in one.items():
        assert torch.allclose(entry["momentum_buffer"], two[index]["momentum_buffer"], rtol=1e-3, atol=1e-6)


def test_another_optimizers_state_is_told_and_left(run, capsys):
    assert run("--epochs", 2, "--stop-after-epochs", 1, "--output-dir", "run") == 0
    assert run("--resume", "run", "--opt", "adamw", base="") == 0
    assert "does not fit this optimizer" in capsys.readouterr().out
    assert set(load("run")["optimizer"][0]) == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_without_a_fused_form_the_host_reads_once_a_step_and_says_so_once(run, monkeypatch, capsys, level):
    counts = reads_of_each_step(monkeypatch)
    assert run("--opt", "rmsprop", "--opt-level", level, "--lr", 0.001, "--print-freq", 100) == 0
    assert counts == [1] * 4
    assert capsys.readouterr().out.count("has no fused form") == 1


@pytest.mark.parametrize("flags", ["--opt-level O0", "--opt-level O3", "--opt-level O2 --amp-dtype float16"])
@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
def test_a_bad_step_reaches_no_weight(run, name, flags):
    dynamic = "float16" in flags
    model = "toy_models:nan_first" if dynamic else "toy_models:nan_third"
    code = run("-a", model, "--opt", name, "--lr", 0.01, *flags.split(), "--output-dir", "run")
    assert code == (0 if dynamic else 3)
    if dynamic:
        content = load("run")
        assert content["skipped_steps"] == 1
        assert all(torch.isfinite(value).all() for value in content["state_dict"].values())
        assert all(float(entry["step"]) == 3 for entry in content["optimizer"].values())


def test_a_cosine_ends_at_the_least_rate():
    schedule = LRSchedule(1.0, 12, warmup_steps=2, cosine=True, least=0.2)
    assert schedule(2) == 1.0
    assert schedule(7) == pytest.approx(0.6)
    assert schedule(12) == pytest.approx(0.2)
    assert schedule(9) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * 0.7)))
    assert "half cosine to 0.2" in schedule.describe()


def test_drops_stop_at_the_least_rate():
    schedule = LRSchedule(1.0, 4, milestones=(1, 2, 3), least=0.05)
    assert [schedule(step) for step in range(4)] == pytest.approx([1.0, 0.1, 0.05, 0.05])


def test_a_rate_for_sgd_is_told(run, capsys):
    for name, flags, told in (("adamw", [], True), ("adamw", ["--lr", 0.001], False), ("nesterov", [], False)):
        assert run("--opt", name, *flags) == 0
        assert ("is a rate for SGD" in capsys.readouterr().out) == told


def test_least_rate_reaches_the_run(run):
    assert (
        run(
            "--lr-schedule",
            "cosine",
            "--min-lr",
            0.05,
            "--lr",
            0.1,
            "--lr-scaling",
            "none",
            "--epochs",
            4,
            "--output-dir",
            "run",
        )
        == 0
    )
    assert rows("run")[-1]["lr"] == pytest.approx(0.05, rel=0.02)


def accuracies(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> None:
    original = Validation.run
    left = iter(values)

    def run(self: Validation, val: object, step: int) -> Scores:
        scores = original(self, val, step)
        main = type(scores.main)(scores.main.loss, next(left), 100.0, scores.main.images)
        return Scores(main)

    monkeypatch.setattr(Validation, "run", run)


def test_early_stop_ends_the_run_as_done(run, monkeypatch, capsys):
    accuracies(monkeypatch, [10.0, 30.0, 20.0, 30.0, 5.0, 6.0])
    assert run("--epochs", 9, "--early-stop", 2, "--output-dir", "run") == 0
    assert [row["epoch"] for row in rows("run", "epoch")] == [0, 1, 2, 3]
    assert json.loads(Path("run/status.json").read_text())["state"] == "done"
    assert "Prec@1 has not risen for 2" in capsys.readouterr().out
    assert run("--resume", "run", base="") == 0
    told = capsys.readouterr().out
    assert "nothing left to do: 4 of 9 epochs are done, Prec@1 has not risen" in told
    assert "(--early-stop 2); a larger --early-stop goes on" in told
    assert load("run")["epoch"] == 4


def test_early_stop_counts_on_over_a_resume(run, monkeypatch):
    accuracies(monkeypatch, [30.0, 20.0, 10.0, 5.0])
    assert run("--epochs", 9, "--early-stop", 2, "--stop-after-epochs", 2, "--output-dir", "run") == 0
    assert json.loads(Path("run/status.json").read_text())["state"] == "preempted"
    assert run("--resume", "run", base="") == 0
    assert [row["epoch"] for row in rows("run", "epoch")] == [0, 1, 2]


def test_val_every_validates_those_epochs_and_the_last(run, monkeypatch):
    validated: list[int] = []
    original = Engine.validate

    def validate(self: Engine, val: object) -> object:
        validated.append(self.progress.epoch)
        return original(self, val)

    monkeypatch.setattr(Engine, "validate", validate)
    assert run("--epochs", 5, "--val-every", 2, "--tensorboard", "true", "--output-dir", "run") == 0
    assert validated == [1, 3, 4]
    assert ["val_loss" in row for row in rows("run", "epoch")] == [False, True, False, True, True]
    with open("run/summary.csv", newline="") as stream:
        assert [bool(row["val_acc1"]) for row in csv.DictReader(stream)] == [False, True, False, True, True]
    assert load("run")["best_epoch"] in validated


def test_early_stop_waits_for_a_validation(run, monkeypatch):
    accuracies(monkeypatch, [30.0, 20.0, 50.0])
    assert run("--epochs", 20, "--val-every", 4, "--early-stop", 1, "--output-dir", "run") == 0
    assert [row["epoch"] for row in rows("run", "epoch")][-1] == 7


def test_a_rate_below_its_own_end_is_refused(run, capsys):
    """--lr is scaled by the batch, --lr-min is not: nothing is to rise where it should fall."""
    assert run("--lr-min", 0.01) == 2
    assert (
        "--lr-min 0.01 lies above the rate that it is the end of (lr 0.1 x 8/256 = 0.003125)" in capsys.readouterr().err
    )
    assert run("--lr-min", 0.003, "--output-dir", "run") == 0


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"opt": "nesterov", "momentum": 0.0}, "--momentum"),
        ({"opt": "rmsprop", "opt_level": "O3", "loss_scale": "dynamic"}, "--opt rmsprop"),
        ({"lr_min": -0.1}, "--lr-min"),
        ({"opt": "lamb"}, "--opt"),
        ({"early_stop": 0}, "--early-stop"),
        ({"val_every": 0}, "--val-every"),
        ({"norm_weight_decay": -1.0}, "--norm-weight-decay"),
    ],
)
def test_what_is_impossible_names_the_flag(settings, flag):
    from trainer.errors import UserError

    with pytest.raises(UserError, match=flag):
        TrainConfig(**settings)

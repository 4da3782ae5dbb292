"""``--model-ema``: the average of the weights, where it is kept, validated, saved and read."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
import torch
from helpers import assert_same_end, load, rows, torchrun
from test_exact_resume import SYNTHETIC
from torch import nn

from trainer.average import WeightAverage, warming_up
from trainer.cli import parse
from trainer.engine import Engine
from trainer.levels import level_options
from trainer.precision import Precision
from trainer.step import Stepper

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import export_weights  # noqa: E402
from saved_model import load_saved_model  # noqa: E402

CPU = torch.device("cpu")


def follow(monkeypatch: pytest.MonkeyPatch, decay: float) -> dict[str, torch.Tensor]:
    """An average of every state dict after a step, worked out beside the run as the formula says."""
    expected: dict[str, torch.Tensor] = {}
    counts: list[int] = []
    original = Stepper.step

    def watched(self: Stepper, *args: object) -> int:
        taken = original(self, *args)
        state = self.precision.model_state(self.model, lambda _, tensor: tensor.clone().double())
        kept = min(decay, (1 + len(counts)) / (10 + len(counts))) if counts else 0.0
        for name, value in state.items():
            whole = name.endswith("num_batches_tracked")
            expected[name] = value if whole or not counts else kept * expected[name] + (1 - kept) * value
        counts.append(1)
        return taken

    monkeypatch.setattr(Stepper, "step", watched)
    return expected


@pytest.mark.parametrize("decay", [0.9998, 0.5])
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_the_average_is_that_of_the_masters_and_buffers_after_every_step(run, monkeypatch, level, decay):
    expected = follow(monkeypatch, decay)
    assert run("--model-ema", decay, "--opt-level", level, "--epochs", 3, "--output-dir", "run") == 0
    content = load("run")
    assert content["ema"]["updates"] == 12
    for name, value in content["ema"]["state_dict"].items():
        assert value.dtype is (torch.int64 if name.endswith("num_batches_tracked") else torch.float32)
        assert torch.allclose(value.double(), expected[name], rtol=1e-5, atol=1e-7), name
    first, raw = "features.0.weight", content["state_dict"]
    assert not torch.equal(content["ema"]["state_dict"][first], raw[first])


def test_the_share_kept_rises_to_the_decay():
    update, average = warming_up(0.9), torch.zeros(1)
    kept = []
    for count in (1, 2, 90, 1000):
        average.fill_(1.0)
        update([average], [torch.zeros(1)], count)
        kept.append(average.item())
    assert kept == pytest.approx([2 / 11, 3 / 12, 0.9, 0.9])


@pytest.mark.parametrize(
    ("argv", "decay"),
    [
        ("--model-ema", 0.9998),
        ("--model-ema 0.99 /images", 0.99),
        ("--model-ema 1e-3 /images", 0.001),
        ("--model-ema /images", 0.9998),
        ("--model-ema --model-ema-decay 0.9", 0.9),
        ("--model-ema-decay 0.9 --model-ema", 0.9),
        ("--model-ema None", None),
    ],
)
def test_the_bare_flag_has_a_decay_that_another_spelling_may_give(argv, decay):
    config = parse(argv.split()).config
    assert config.model_ema == decay
    assert config.data_dir == ("/images" if "/images" in argv else None)


@pytest.mark.parametrize("half", [False, True])
def test_strides_are_the_models(half):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    precision = Precision(level_options("O3" if half else "O0", torch.bfloat16), torch.bfloat16, CPU)
    precision.convert_model(model)
    average = WeightAverage(model, 0.9)
    average.update()
    average.update()
    for module in (average.module, average.to_validate(precision)):
        assert module[0].weight.stride() == model[0].weight.stride() != (27, 9, 3, 1)
    assert average.module[0].weight.dtype is torch.float32
    assert average.to_validate(precision)[0].weight.dtype is model[0].weight.dtype


def test_a_small_share_moves_a_half_model():
    """In bfloat16 a share of 0.0002 of a difference of 1 would be rounded away."""
    model = nn.Linear(1, 1, bias=False).bfloat16()
    average = WeightAverage(model, 0.9998)
    nn.init.ones_(model.weight)
    average.update()
    average.updates = 10**6
    nn.init.zeros_(model.weight)
    average.update()
    assert average.module.weight.item() == pytest.approx(0.9998)


def test_the_raw_model_counts_unless_ema_eval(run):
    """summary.csv, val_* and best.pt are the raw model's; with --ema-eval the average's."""
    flags = ["--epochs", 2, "--lr", 0.3, "--model-ema", 0.999]
    assert run(*flags, "--output-dir", "raw") == 0
    assert run(*flags, "--ema-eval", "--output-dir", "swapped") == 0
    for raw, swapped in zip(rows("raw", "epoch"), rows("swapped", "epoch"), strict=True):
        for key in ("loss", "acc1", "acc5"):
            assert raw[f"val_{key}"] == swapped[f"val_raw_{key}"]
            assert raw[f"val_ema_{key}"] == swapped[f"val_ema_{key}"] == swapped[f"val_{key}"]
        assert raw["val_loss"] != raw["val_ema_loss"]
        assert "val_raw_loss" not in raw
    for name in ("raw", "swapped"):
        with open(f"{name}/summary.csv", newline="") as stream:
            told = [float(row["val_loss"]) for row in csv.DictReader(stream)]
        assert told == pytest.approx([row["val_loss"] for row in rows(name, "epoch")], rel=1e-5)
        assert load(name)["best_acc1"] == max(row["val_acc1"] for row in rows(name, "epoch"))


@pytest.mark.parametrize("level", ["O0", "O2", "O3"])
def test_the_saved_average_validates_as_it_did(run, capsys, level):
    flags = ["--model-ema", 0.9, "--opt-level", level, "--channels-last", "--lr", 3]
    assert run(*flags, "--output-dir", "run") == 0
    (row,) = rows("run", "epoch")
    assert run("-e", "--resume", "run/checkpoints/last.pt", "--ema-eval", "--output-dir", "check", base="") == 0
    assert rows("check", "epoch")[0]["val_loss"] == pytest.approx(row["val_ema_loss"], rel=1e-5)
    assert run("-e", "--resume", "run/checkpoints/last.pt", "--output-dir", "plain", base="") == 0
    assert rows("plain", "epoch")[0]["val_loss"] == pytest.approx(row["val_loss"], rel=1e-5)
    assert "val_ema_loss" not in rows("plain", "epoch")[0]
    capsys.readouterr()
    assert export_weights.main(["run/checkpoints/last.pt", "average.pth", "--ema"]) == 0
    state = torch.load("average.pth", weights_only=True)
    assert all(torch.equal(value, state[name]) for name, value in load("run")["ema"]["state_dict"].items())
    assert not torch.equal(load_saved_model(Path("run/checkpoints/last.pt")).model.head.weight, state["head.weight"])


def test_tensorboard_holds_both(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run("--model-ema", "--tensorboard", "true", "--output-dir", "run") == 0
    events = EventAccumulator("run").Reload()
    assert {"val/acc1", "val_ema/acc1", "val_ema/loss"} <= set(events.Tags()["scalars"])
    assert events.Scalars("val_ema/loss")[0].value == pytest.approx(rows("run", "epoch")[0]["val_ema_loss"])


def test_a_checkpoint_without_an_average_starts_one_from_its_weights(run, capsys):
    assert run("--epochs", 2, "--stop-after-epochs", 1, "--output-dir", "run") == 0
    before = load("run")["state_dict"]
    with pytest.MonkeyPatch.context() as patch:
        seen: list[torch.Tensor] = []
        original = Engine.fit

        def fit(self: Engine, *args: object) -> bool:
            assert self.stepper.average is not None
            seen.append(self.stepper.average.module.head.weight.clone())
            return original(self, *args)

        patch.setattr(Engine, "fit", fit)
        assert run("--resume", "run", "--model-ema", base="") == 0
    assert torch.equal(seen[0], before["head.weight"])
    assert "holds no average" in capsys.readouterr().out
    assert load("run")["ema"]["updates"] == 4


def test_mistakes_are_a_sentence(run, capsys):
    assert run("--ema-eval") == 2
    assert "add --model-ema" in capsys.readouterr().err
    assert run("--output-dir", "run") == 0
    for flags in (["--model-ema", "--ema-eval"], ["--ema-eval"]):
        assert run("-e", "--resume", "run/checkpoints/last.pt", *flags, base="") == 2
        assert "holds no average" in capsys.readouterr().err


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_the_raw_run_stays_what_it_was(run, level):
    """With random layers too."""
    flags = ["-a", "toy_models:dropping", "--opt-level", level, "--epochs", 2]
    assert run(*flags, "--output-dir", "without") == 0
    assert run(*flags, "--model-ema", "--output-dir", "with") == 0
    assert_same_end("without", "with")
    assert load("with")["ema"]["updates"] == 8


def test_a_modules_extra_state_is_copied(run):
    assert run("-a", "toy_models:with_extra_state", "--model-ema", "--output-dir", "run") == 0
    assert run("-e", "--ema-eval", "--resume", "run/checkpoints/last.pt", base="") == 0
    assert load("run")["ema"]["state_dict"]["_extra_state"] == {"version": 3}


def test_a_rewind_takes_the_average_back_too(run):
    """Of ten steps the sixth is bad and left out."""
    assert (
        run("-a", "toy_models:bad_images_sixth", "--rewind", "--model-ema", 0.9, "--output-dir", "run", base=SYNTHETIC)
        == 0
    )
    content = load("run")
    assert (content["rewinds"], content["step"], content["ema"]["updates"]) == (1, 10, 9)
    assert all(torch.isfinite(value).all() for value in content["ema"]["state_dict"].values())


TWO_RANKS = ["-a", "toy_models:plain", "--b", 8, "--synthetic-size", 64, "--epochs", 2, "--model-ema", 0.9, "-vb", 8]


def on_two_ranks(folder: Path, *flags: object) -> None:
    small = ["--image-size", 32, "--num-classes", 4, "-p", 1, "--tensorboard", "false"]
    done = torchrun(folder, 2, ROOT / "train.py", *small, *flags)
    assert done.returncode == 0, done.stderr[-2000:]


def test_two_ranks_keep_the_average_of_one(run, tmp_path):
    assert run(*TWO_RANKS, "--b", 16, "--output-dir", "one") == 0
    on_two_ranks(tmp_path, *TWO_RANKS, "--output-dir", "two")
    one, two = load("one")["ema"], load("two")["ema"]
    assert one["updates"] == two["updates"] == 8
    for name, value in one["state_dict"].items():
        assert torch.allclose(value, two["state_dict"][name], rtol=1e-4, atol=1e-6), name
    assert rows("one", "epoch")[1]["val_ema_loss"] == pytest.approx(rows("two", "epoch")[1]["val_ema_loss"], rel=1e-4)


@pytest.mark.slow
def test_two_ranks_stopped_and_resumed_are_two_ranks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = [*TWO_RANKS, "-a", "toy_models:dropping", "--opt-level", "O2"]
    on_two_ranks(tmp_path, *flags, "--output-dir", "straight")
    on_two_ranks(tmp_path, *flags, "--output-dir", "halves", "--stop-after-steps", 3)
    on_two_ranks(tmp_path, "--resume", "halves")
    averages = [load(name)["ema"] for name in ("straight", "halves")]
    for name, value in averages[0]["state_dict"].items():
        if "running" not in name:  # a rank's own statistics are those of rank 0 after a resume
            assert torch.equal(value, averages[1]["state_dict"][name]), name

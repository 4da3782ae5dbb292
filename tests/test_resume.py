"""A resumed run is the run it goes on with: settings, folder, numbers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
import yaml
from helpers import assert_same_end, load, make_folder, rows

LEVELS = ("O0", "O1", "O2", "O3")


@pytest.mark.parametrize(
    "level",
    [("O0",), ("O2",), ("O2", "--amp-dtype", "float16", "--loss-scale", "128"), ("O1", "--amp-dtype", "float16")],
    ids=" ".join,
)
def test_two_epochs_and_two_more_are_four(run, level):
    """R24, R25, R65, R77, R82: bitwise, dropout, order, rate and loss scale included."""
    flags = ["--opt-level", *level, "--epochs", 4, "-a", "toy_models:dropping", "--channels-last"]
    assert run(*flags, "--output-dir", "straight") == 0
    assert run(*flags, "--output-dir", "halves", "--stop-after-epochs", 2) == 0
    assert json.loads(Path("halves/status.json").read_text())["state"] == "preempted"
    assert run("--resume", "halves", base="") == 0
    assert json.loads(Path("halves/status.json").read_text())["state"] == "done"
    assert_same_end("straight", "halves")


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_resnet18_too(run, level):
    flags = ["-a", "resnet18", "--opt-level", level, "--epochs", 4, "--channels-last"]
    assert run(*flags, "--output-dir", "straight") == 0
    assert run(*flags, "--output-dir", "halves", "--stop-after-epochs", 2) == 0
    assert run("--resume", "halves", base="") == 0
    assert_same_end("straight", "halves")


def test_a_stop_inside_an_epoch_goes_on_where_it_stopped(run):
    flags = ["--epochs", 2, "-a", "toy_models:dropping"]
    assert run(*flags, "--output-dir", "straight") == 0
    assert run(*flags, "--output-dir", "halves", "--stop-after-steps", 3) == 0
    assert run("--resume", "halves/checkpoints/last.pt", base="") == 0
    assert_same_end("straight", "halves")
    assert rows("straight", "epoch")[0]["train_loss"] == pytest.approx(rows("halves", "epoch")[0]["train_loss"])


@pytest.mark.parametrize("workers", [0, 2])
def test_folder_data_resumes_bitwise(run, workers):
    make_folder(Path("data"), train=8, val=4)
    flags = "data -a toy_models:dropping -b 4 --image-size 32 -p 1 --tensorboard false --epochs 2".split()
    assert run(*flags, "-j", 0, "--output-dir", "straight", base="") == 0
    assert run(*flags, "-j", workers, "--output-dir", "halves", "--stop-after-epochs", 1, base="") == 0
    assert run("--resume", "halves", "-j", workers, base="") == 0
    assert_same_end("straight", "halves")


@pytest.mark.parametrize(("saved", "resumed"), list(itertools.product(LEVELS, LEVELS)))
def test_all_sixteen_pairs_of_levels(run, capsys, saved, resumed):
    assert run("--opt-level", saved, "--output-dir", "run", "--channels-last") == 0
    weights = load("run")["state_dict"]
    capsys.readouterr()
    assert run("--resume", "run", "--opt-level", resumed, "--epochs", 2, "--lr", 0, base="") == 0
    output = capsys.readouterr().out
    assert (f"--opt-level: {saved} -> {resumed}" in output) is (saved != resumed)
    after = load("run")["state_dict"]
    exact = resumed != "O3"
    for name, value in weights.items():
        if "running" not in name and "num_batches" not in name:
            assert (
                torch.equal(after[name], value) if exact else torch.allclose(after[name], value, rtol=1e-2, atol=1e-2)
            ), name


def test_every_tensor_has_the_asked_format_after_a_resume(run, monkeypatch):
    """R51: parameters, masters and momentum, also when the format changes."""
    from trainer import finish

    seen = {}
    original = finish.fit

    def watched(engine, *rest):
        optimizer = engine.stepper.optimizer
        tensors = [*engine.stepper.model.parameters(), *optimizer.param_groups[0]["params"]]
        tensors += [state["momentum_buffer"] for state in optimizer.state.values()]
        seen[True] = all(t.is_contiguous(memory_format=torch.channels_last) for t in tensors if t.dim() == 4)
        return original(engine, *rest)

    assert run("--output-dir", "run", "--opt-level", "O2") == 0
    monkeypatch.setattr(finish, "fit", watched)
    assert run("--resume", "run", "--channels-last", "--epochs", 2, base="") == 0
    assert seen == {True: True}


def test_flags_not_given_are_the_checkpoints_and_given_ones_are_shown(run, capsys):
    assert run("--output-dir", "run", "--lr", 0.3, "--momentum", 0.8) == 0
    capsys.readouterr()
    assert run("--resume", "run", "--momentum", 0.5, "--epochs", 2, base="") == 0
    output = capsys.readouterr().out
    assert "--momentum: 0.8 -> 0.5" in output
    assert "--epochs: 1 -> 2" in output
    assert "lr 0.3 x 8/256" in output
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert (config["lr"], config["momentum"], config["epochs"]) == (0.3, 0.5, 2)
    assert load("run")["step"] == 8


def test_another_arch_or_class_count_is_exit_2(run, capsys):
    assert run("--output-dir", "run") == 0
    for flags in (["-a", "toy_models:dropping"], ["--num-classes", 7]):
        capsys.readouterr()
        assert run("--resume", "run", *flags, "--epochs", 2, base="") == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_config_yaml_reruns_the_run(run):
    assert run("--output-dir", "one", "--lr", 0.2, "--channels-last", "--opt-level", "O2") == 0
    assert run("--config", "one/config.yaml", "--output-dir", "two", base="") == 0
    assert_same_end("one", "two")
    config = yaml.safe_load(Path("one/config.yaml").read_text())
    assert not {"output_dir", "resume", "config", "local_rank"} & set(config)
    assert config["workers"] is None
    resolved = yaml.safe_load(Path("one/resolved.yaml").read_text())
    assert set(resolved) == set(config)
    for key in (
        "workers",
        "image_size",
        "val_resize",
        "epochs",
        "opt_level",
        "lr_warmup_epochs",
        "mean",
        "val_batch_size",
    ):
        assert resolved[key] is not None, key
    assert resolved["amp_dtype"] == "bfloat16"
    assert not [key for key, value in resolved.items() if value == "auto"]


def test_changing_epochs_is_said_to_change_the_schedule(run, capsys):
    assert run("--output-dir", "run", "--epochs", 2, "--stop-after-epochs", 1) == 0
    capsys.readouterr()
    assert run("--resume", "run", "--epochs", 4, base="") == 0
    assert "schedule is that of the new length" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (["--steps-per-epoch", 4, "--stop-after-steps", 3], ["--steps-per-epoch", 2]),
        (["--steps-per-epoch", 4, "--stop-after-steps", 3], ["--batch-size", 4]),
        (["--stop-after-epochs", 1, "--lr-warmup-epochs", 0], ["-b", 16]),
        (["--stop-after-steps", 3], ["-b", 16]),
        (["--stop-after-epochs", 1], ["--grad-accum-steps", 4]),
    ],
    ids=str,
)
def test_resuming_with_another_batch_or_length(run, first, then):
    """Also where nothing is left of the epoch, or the next one has fewer steps than were taken."""
    assert run("--epochs", 2, *first, "--output-dir", "run") == 0
    assert run("--resume", "run", *then, base="") == 0
    assert load("run")["epoch"] == 2
    assert [row["epoch"] for row in rows("run", "epoch")] == [0, 1]


def test_start_epoch_wins_over_a_checkpoint_given_by_path(run, capsys):
    assert run("--epochs", 4, "--stop-after-epochs", 1, "--output-dir", "run") == 0
    assert run("--resume", "run", "--start-epoch", 3, base="") == 0
    assert "the checkpoint was at epoch 1" in capsys.readouterr().out
    assert [row["epoch"] for row in rows("run", "epoch")] == [0, 3]


def test_a_run_from_weights_needs_their_file_only_once(run):
    assert run("--output-dir", "one") == 0
    assert (
        run("--weights", "one/checkpoints/last.pt", "--epochs", 2, "--stop-after-epochs", 1, "--output-dir", "two") == 0
    )
    config = yaml.safe_load(Path("two/config.yaml").read_text())
    assert Path(config["weights"]).is_absolute()
    Path("one/checkpoints/last.pt").unlink()
    assert run("--resume", "two", base="") == 0
    assert run("-e", "--resume", "two", base="") == 0


def test_the_image_size_takes_the_validation_crop_along(run):
    assert run("--output-dir", "run") == 0
    assert run("--resume", "run", "--image-size", 48, "--epochs", 2, base="") == 0
    resolved = yaml.safe_load(Path("run/resolved.yaml").read_text())
    assert (resolved["image_size"], resolved["val_image_size"], resolved["val_resize"]) == (48, 48, 55)

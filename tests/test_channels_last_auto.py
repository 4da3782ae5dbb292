"""--channels-last auto: the flag, and a run that is the chosen format's, bit for bit."""

from __future__ import annotations

import random
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from helpers import launch, refused
from torch import Tensor, nn

from trainer import build, format_trial
from trainer.cli import parse
from trainer.coerce import coerce
from trainer.config import TrainConfig
from trainer.format_trial import Limits, take_turns
from trainer.memory_format import resolve_memory_format

CPU = torch.device("cpu")


def planted(ratios: list[float]) -> list[tuple[float, float]]:
    return [(ratio, 1.0) for ratio in ratios]


@pytest.mark.parametrize("word", ["auto", "AUTO", "Auto"])
def test_auto_joins_the_spellings(word: str):
    assert coerce("channels_last", word) == "auto"
    assert parse(["--channels-last", word, "images"]).config.channels_last == "auto"
    assert parse([f"--channels-last={word}"]).config.channels_last == "auto"
    assert parse(["--channels-last", word]).config.data_dir is None


def test_no_other_switch_takes_auto():
    assert parse(["--sync-bn", "auto"]).config.data_dir == str(Path("auto").resolve())
    assert "needs true or false" in refused(coerce, "sync_bn", "auto")
    assert "--channels-last needs true, false or 'auto', got 'maybe'" in refused(parse, ["--channels-last=maybe"])
    assert "--channels-last needs" in refused(lambda: TrainConfig(channels_last="maybe"))


def test_nothing_is_laid_out_before_auto_is_settled():
    with pytest.raises(AssertionError, match="auto is settled"):
        resolve_memory_format("auto")


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> dict:
    """Both formats take their steps, but the times are planted: ``ratio`` is how much faster channels-last is."""
    planted_times = {"ratio": 1.5, "steps": []}
    real = take_turns

    def turns(arms, limits, clock):
        monkeypatch.setattr(format_trial, "MOST_ROUNDS", 1)
        planted_times["steps"].append(len(real(arms, Limits(None), clock)))
        return planted([planted_times["ratio"]] * 20)

    monkeypatch.setattr(format_trial, "take_turns", turns)
    monkeypatch.setattr(Limits, "too_few", property(lambda self: False))
    return planted_times


def weights(folder: str) -> dict[str, Tensor]:
    content = torch.load(Path(folder, "checkpoints", "last.pt"), weights_only=True)
    momentum = {f"momentum {key}": entry["momentum_buffer"] for key, entry in content["optimizer"].items()}
    return {**content["state_dict"], **momentum}


def assert_equal(one: str, other: str) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def setting(folder: str, file: str) -> object:
    return yaml.safe_load(Path(folder, file).read_text())["channels_last"]


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize(("ratio", "chosen"), [(1.5, "true"), (0.7, "false")])
def test_the_run_is_bitwise_that_of_the_chosen_format(run, faster, capsys, ratio, chosen, level):
    faster["ratio"] = ratio
    flags = ("-a", "toy_models:dropping", "--opt-level", level)
    assert run(*flags, "--channels-last", "auto", "--output-dir", "auto") == 0
    output = capsys.readouterr().out
    assert faster["steps"] == [1]
    assert output.count(f"--channels-last auto: {chosen}") == 1
    assert run(*flags, "--channels-last", chosen, "--output-dir", "given") == 0
    assert_equal("auto", "given")
    assert setting("auto", "config.yaml") == "auto"
    assert setting("auto", "resolved.yaml") is (chosen == "true")


def test_the_run_folder_is_named_after_the_choice(run, faster):
    assert run("--channels-last", "auto") == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.endswith("-O0-channels_last")


def test_resume_takes_the_recorded_choice(run, faster, capsys):
    flags = ("--epochs", 2, "-a", "toy_models:dropping")
    assert run(*flags, "--channels-last", "--output-dir", "straight") == 0
    assert run(*flags, "--channels-last", "auto", "--output-dir", "halves", "--stop-after-epochs", 1) == 0
    faster["ratio"] = 0.5  # another trial would choose otherwise
    capsys.readouterr()
    assert run("--resume", "halves", base="") == 0
    assert "--channels-last auto: true, what this run began with" in capsys.readouterr().out
    assert len(faster["steps"]) == 1
    assert_equal("straight", "halves")
    assert setting("halves", "config.yaml") == "auto"
    assert setting("halves", "resolved.yaml") is True


def test_resume_auto_finds_the_run(run, faster, capsys):
    assert run("--channels-last", "auto", "--epochs", 2, "--stop-after-epochs", 1) == 0
    assert run("--channels-last", "auto", "--epochs", 2, "--resume", "auto") == 0
    assert len(list(Path("runs").iterdir())) == 1
    assert len(faster["steps"]) == 1


def test_a_resumed_run_may_be_told_otherwise(run, faster):
    assert run("--channels-last", "auto", "--epochs", 2, "--stop-after-epochs", 1, "--output-dir", "run") == 0
    assert run("--resume", "run", "--channels-last", "false", base="") == 0
    assert setting("run", "resolved.yaml") is False


def test_a_short_run_has_no_trial(run, capsys):
    assert run("--channels-last", "auto", "--output-dir", "run") == 0
    output = capsys.readouterr().out
    line = (
        "--channels-last auto: false (contiguous): a run of 4 batches is too short to time both formats (from 320 on)"
    )
    assert output.count(line) == 1
    assert "timing both" not in output
    assert setting("run", "resolved.yaml") is False


def test_a_real_trial_ends_in_a_line(run, capsys):
    assert run("--channels-last", "auto", "--synthetic-size", 3200, "--stop-after-epochs", 1, "-p", 1000) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "--channels-last auto" in line]
    assert len(lines) == 2
    assert "timing both memory formats, 60 s at the most" in lines[0]
    assert "--channels-last auto: true" in lines[1] or "--channels-last auto: false (contiguous)" in lines[1]


def test_an_evaluation_is_contiguous_or_what_was_recorded(run, faster, capsys):
    assert run("--channels-last", "auto", "-e", "--output-dir", "blank") == 0
    assert "--channels-last auto: false, since an evaluation is one pass" in capsys.readouterr().out
    assert setting("blank", "resolved.yaml") is False
    assert faster["steps"] == []
    assert run("--channels-last", "auto", "--output-dir", "run") == 0
    assert run("-e", "--resume", "run", "--output-dir", "again", base="") == 0
    assert setting("again", "resolved.yaml") is True


class FailsChannelsLast(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.head = nn.Linear(8, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.conv(images).view(len(images) * 8, -1).mean(1).view(-1, 8))


def fails_channels_last(num_classes: int) -> nn.Module:
    return FailsChannelsLast(num_classes)


def test_a_model_that_fails_in_channels_last_trains_contiguous(run, faster, capsys):
    assert run("-a", "test_channels_last_auto:fails_channels_last", "--channels-last", "auto") == 0
    assert "false (contiguous): the trial of both formats failed (RuntimeError: view size" in capsys.readouterr().out


def test_random_numbers_are_put_back():
    with torch.random.fork_rng(devices=[]):
        states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
        with format_trial.nothing_left_behind(CPU):
            _ = torch.rand(3), random.random(), np.random.rand()
        assert torch.equal(torch.get_rng_state(), states[0])
        assert random.getstate() == states[1]
        assert (np.random.get_state()[1] == states[2]).all()


@pytest.mark.parametrize("arch", ["toy_models:tiny", "test_channels_last_auto:fails_channels_last"])
def test_the_copies_are_gone_afterwards(run, faster, monkeypatch, arch):
    """When the trial returns, not some time later: the run needs the memory."""
    references: list[weakref.ref] = []
    alive: list[object] = []
    real = build.choose_format

    def choose(make, *arguments):
        def remembered(channels_last: bool):
            stepper = make(channels_last)
            references.extend([weakref.ref(stepper.model), weakref.ref(stepper.optimizer)])
            return stepper

        found = real(remembered, *arguments)
        alive.extend(reference() for reference in references)
        return found

    monkeypatch.setattr(build, "choose_format", choose)
    assert run("-a", arch, "--channels-last", "auto") == 0
    assert alive == [None] * 4


@pytest.mark.slow
def test_two_ranks_take_what_rank_0_found(tmp_path: Path):
    flags = ("-a", "toy_models:dropping", "--b", 2, "--synthetic-size", 2560, "-p", 1000)
    done = launch(tmp_path, 2, *flags, "--channels-last", "auto", "--output-dir", "auto")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("--channels-last auto: timing both") == 1
    assert done.stdout.count("--channels-last auto: true") + done.stdout.count("--channels-last auto: false") == 1
    chosen = setting(str(tmp_path / "auto"), "resolved.yaml")
    given = launch(tmp_path, 2, *flags, "--channels-last", str(chosen).lower(), "--output-dir", "given")
    assert given.returncode == 0, given.stderr[-2000:]
    assert_equal(str(tmp_path / "auto"), str(tmp_path / "given"))

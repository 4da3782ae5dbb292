"""``--rewind``: back to the last good checkpoint, past the images of the bad steps and of no other."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from helpers import load, rows, torchrun

from trainer.rewind import _joined
from trainer.step import Stepper

# 40 images and 8 a step: two epochs of five steps.
TEN_STEPS = "--b 8 --synthetic-size 40 --image-size 32 --num-classes 4 --tensorboard false --epochs 2 --rewind"


def spoil_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """As if the update of ``step`` had overflowed a weight, once."""
    original, done = Stepper.step, []

    def step_and_spoil(self: Stepper, at: int, *rest: object) -> int:
        taken = original(self, at, *rest)
        if at == step and not done:
            done.append(at)
            with torch.no_grad():
                next(iter(self.model.parameters())).view(-1)[0] = math.inf
        return taken

    monkeypatch.setattr(Stepper, "step", step_and_spoil)


def assert_done(left_out: list[list[int]], rewinds: int = 1) -> None:
    content = load("run")
    assert (content["step"], content["rewinds"], content["left_out"]) == (10, rewinds, left_out)
    assert all(bool(torch.isfinite(value).all()) for value in content["state_dict"].values())


@pytest.mark.parametrize(
    ("arch", "left_out", "words"),
    [
        ("bad_images_second", [[1, 1]], "the images of step 1 out"),
        ("bad_images_second_and_fourth", [[1, 1], [3, 3]], "the images of steps 1, 3 out"),
        ("bad_images_second_and_third", [[1, 2]], "the images of steps 1 to 2 out"),
    ],
)
def test_only_steps_that_are_bad_themselves_are_left_out(run, capsys, arch, left_out, words):
    """The guard keeps every step after the first bad one from the weights, until the next line of the log."""
    assert run("-a", f"toy_models:{arch}", "-p", 5, "--output-dir", "run", base=TEN_STEPS) == 0
    assert_done(left_out)
    bad = sum(last - first + 1 for first, last in left_out)
    assert load("run")["images_seen"] == 80 - 8 * bad
    assert words in capsys.readouterr().out
    (record,) = rows("run", "rewind")
    assert record["left_out"] == left_out


def test_the_fourth_time_ends_the_run(run, capsys):
    assert run("-a", "toy_models:bad_images_often", "-p", 1, "--output-dir", "run", base=TEN_STEPS) == 3
    assert "(after 3 rewinds)" in capsys.readouterr().err
    assert json.loads(Path("run/status.json").read_text())["state"] == "failed"


def test_without_a_good_checkpoint_the_run_ends(run, capsys, monkeypatch):
    monkeypatch.setattr("trainer.saver.CheckpointSaver.save", lambda *_, **__: None)
    assert run("-a", "toy_models:bad_images_second", "-p", 1, "--output-dir", "run", base=TEN_STEPS) == 3
    assert "--rewind found no good checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(("step", "left_out"), [(3, [[3, 4]]), (9, [[9, 9]])], ids=["in flight", "last save"])
def test_what_a_save_finds_is_the_same_incident(run, monkeypatch, step, left_out):
    """A save in flight meets the weights that make the next step bad; the last save is met by no step."""
    spoil_after(monkeypatch, step)
    flags = ["-a", "toy_models:tiny", "-p", 1, "--save-every-steps", 4, "--output-dir", "run"]
    assert run(*flags, base=TEN_STEPS) == 0
    assert_done(left_out)


@pytest.mark.slow
def test_two_ranks_go_back_together(tmp_path):
    train = Path(__file__).parent.parent / "train.py"
    flags = [*TEN_STEPS.replace("--b 8", "--b 4").split(), "-a", "toy_models:bad_images_second", "-p", 5]
    done = torchrun(tmp_path, 2, train, *flags, "--output-dir", "run")
    assert done.returncode == 0, done.stderr[-2000:]
    content = load(tmp_path / "run")
    assert (content["step"], content["rewinds"], content["left_out"]) == (10, 1, [[1, 1]])


@pytest.mark.parametrize(
    ("steps", "joined"),
    [([(3, 3)], [(3, 3)]), ([(5, 6), (1, 1), (2, 2)], [(1, 2), (5, 6)]), ([(1, 9), (2, 3), (10, 10)], [(1, 10)])],
)
def test_rows_of_steps_are_joined(steps: list, joined: list) -> None:
    assert _joined(steps) == joined

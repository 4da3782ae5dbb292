"""--step-times: one line an epoch with every step's time, wait, images and loss; nothing read before it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_timing import FakeClock

from trainer.timing import StepTimer


def lines(folder: str) -> list[dict]:
    return [json.loads(line) for line in Path(folder, "step_times.jsonl").read_text().splitlines()]


def test_every_step_has_its_time_its_wait_and_its_images():
    clock = FakeClock()
    timer = StepTimer(clock, 1, 3, keep_steps=True)
    for seconds in (4.0, 1.0, 2.0):
        for _ in range(2):
            timer.waiting()
            clock.now += seconds / 8
            timer.got_batch()
            clock.now += seconds * 3 / 8
        timer.step_done(8)
        timer.line()  # a logged step settles what was pending
    found = timer.per_step()
    assert found["seconds"] == pytest.approx([4.0, 1.0, 2.0])
    assert found["data_wait"] == pytest.approx([1.0, 0.25, 0.5])
    assert found["images"] == [8, 8, 8]


@pytest.mark.parametrize("flags", [[], ["--grad-accum-steps", 2]])
def test_losses_of_single_steps_are_those_that_are_logged(run, flags):
    """Once with every step logged, once with none between the first and the last: the same losses."""
    for folder, freq in (("each", 1), ("few", 100)):
        assert run("--synthetic-size", 64, "--step-times", "--print-freq", freq, "--output-dir", folder, *flags) == 0
    logged = [json.loads(line) for line in Path("each/metrics.jsonl").read_text().splitlines()]
    expected = [row["loss"] for row in logged if row["kind"] == "step"]
    (each,), (few,) = lines("each"), lines("few")
    assert each["losses"] == pytest.approx(expected)
    assert few["losses"] == pytest.approx(expected)
    steps = 64 // (16 if flags else 8)
    assert len(few["seconds"]) == len(few["data_wait"]) == len(few["losses"]) == steps
    assert few["images"] == [64 // steps] * steps


def test_each_epoch_has_a_line_and_so_has_a_part_of_one(run):
    assert run(*BASE, "--epochs", 2, "--step-times", "--stop-after-steps", 6, "--output-dir", "out", base=None) == 0
    first, second = lines("out")
    assert (first["epoch"], len(first["seconds"])) == (0, 4)
    assert (second["epoch"], len(second["seconds"])) == (1, 2)
    assert all(0 <= wait <= step for wait, step in zip(first["data_wait"], first["seconds"], strict=True))
    assert first["skipped_steps"] == 0
    assert first["clock"] == "perf_counter"


BASE = "-a toy_models:tiny --b 8 --synthetic-size 32 --image-size 32 --num-classes 4 --tensorboard false".split()


def test_a_run_without_the_flag_writes_no_such_file(run):
    assert run("--output-dir", "out") == 0
    assert not Path("out/step_times.jsonl").exists()


def test_a_loss_that_is_not_finite_is_null(run):
    flags = ["--opt-level", "O2", "--amp-dtype", "float16", "--loss-scale", "dynamic", "--output-dir", "out"]
    assert run("-a", "toy_models:nan_third", "--step-times", "--b", 8, *flags) == 0
    (line,) = lines("out")
    assert [loss is None for loss in line["losses"]] == [False, False, True, False]
    assert line["skipped_steps"] == 1


def test_the_loader_may_be_wrapped(tmp_path, monkeypatch):
    import train

    monkeypatch.chdir(tmp_path)
    asked = []

    class Wrapper:
        def __init__(self, loader):
            self.loader = loader
            self.sampler = loader.sampler
            self.steps_in_epoch = loader.steps_in_epoch

        def epoch(self, epoch, consumed=0):
            asked.append(epoch)
            return self.loader.epoch(epoch, consumed)

    assert train.main([*BASE, "--epochs", "2"], loader_wrapper=Wrapper) == 0
    assert asked == [0, 1]

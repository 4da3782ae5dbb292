"""``--ra-reps`` and ``--progressive``: what a sample's key says of its copy and of its size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import assert_same_end, load, make_folder, refused

from data.progressive import SizeSchedule
from data.sampler import StepSampler
from trainer.cli import parse
from trainer.step import Stepper

FOLDER = "--b 4 --tensorboard false -p 3 --num-classes 2 -j 0"


def keys(sampler: StepSampler, epoch: int, consumed: int = 0) -> list[tuple[int, int]]:
    sampler.start(epoch, consumed)
    return [key for batch in sampler for key in batch]


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("size", [24, 25])
def test_copies_of_a_sample_stand_side_by_side_and_differ_in_their_draw(world: int, size: int):
    samplers = [StepSampler(size, 4, rank, world, repeats=3) for rank in range(world)]
    for epoch in (0, 5):
        found = [key for sampler in samplers for key in keys(sampler, epoch)]
        assert len(found) == len(set(found)) >= 24, "as long as without repeats, no key twice"
        assert {draw // 3 for draw, _ in found} == {epoch}
        counts: dict[int, set[int]] = {}
        for draw, index in found:
            counts.setdefault(index, set()).add(draw % 3)
        assert sum(draws == {0, 1, 2} for draws in counts.values()) >= 8
        plain = StepSampler(size, 4)
        plain.start(epoch)
        assert set(counts) <= {int(index) for index in plain.order()[:9]}, "the first third of the epoch's order"


def test_one_repeat_changes_nothing():
    assert keys(StepSampler(24, 4, repeats=1), 3) == keys(StepSampler(24, 4), 3)


def test_a_rest_of_an_epoch_is_the_end_of_the_whole():
    sampler = StepSampler(50, 4, 1, 2, accumulation=2, repeats=4)
    whole = keys(sampler, 2)
    assert keys(sampler, 2, 16) == whole[8:]


def test_sizes_by_share_of_the_run():
    sizes = SizeSchedule((128, 0.0, 160, 0.3, 192, 0.6, 224, 0.9), epochs=10)
    assert [sizes(epoch) for epoch in range(10)] == [128] * 3 + [160] * 3 + [192] * 3 + [224]
    repeated = SizeSchedule((128, 0.0, 160, 0.3), epochs=10, repeats=4)
    assert [repeated(4 * epoch + copy) for epoch in (2, 3) for copy in range(4)] == [128] * 4 + [160] * 4


def seen_sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    sizes: list[tuple[int, ...]] = []
    original = Stepper._pieces

    def pieces(self: Stepper, loaded: object) -> object:
        for piece in original(self, loaded):
            assert piece[1].is_contiguous(memory_format=torch.channels_last)
            sizes.append(tuple(piece[1].shape[2:]))
            yield piece

    monkeypatch.setattr(Stepper, "_pieces", pieces)
    return sizes


@pytest.mark.parametrize("source", ["synthetic", "folder"])
def test_each_epoch_trains_at_its_size(run, monkeypatch, capsys, source):
    sizes = seen_sizes(monkeypatch)
    flags = ["--epochs", 4, "--progressive", "16:0,24:0.5,32:0.75", "-a", "toy_models:tiny", "--channels-last"]
    if source == "folder":
        flags += [make_folder(Path("data"), train=4, val=4), "-j", 2]
    else:
        flags += ["--synthetic-size", 8]
    assert run(*flags, base=FOLDER) == 0
    assert sizes == [(16, 16)] * 4 + [(24, 24)] * 2 + [(32, 32)] * 2
    said = capsys.readouterr().out
    assert "16 pixels from 0% of the run, 24 pixels from 50% of the run" in said
    assert said.count("pixels from here on") == 2
    assert "images are 24 x 24 pixels from here on: batch (4, 3, 24, 24)" in said


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_run_goes_on_with_its_sizes_and_copies(run, workers):
    make_folder(Path("data"), train=8, val=4)
    flags = ["data", "-a", "toy_models:dropping", "--epochs", 3, "--progressive", "16:0,32:0.5", "--ra-reps", 3]
    flags += ["--auto-augment", "ta_wide", "--model-ema"]
    assert run(*flags, "--output-dir", "straight", base=FOLDER) == 0
    assert run(*flags, "--output-dir", "halves", "--stop-after-steps", 6, base=FOLDER) == 0
    assert run("--resume", "halves", "-j", workers, base="") == 0
    assert load("halves")["step"] == 12
    assert_same_end("straight", "halves")


def test_copies_of_an_image_get_pixels_of_their_own(tmp_path):
    from data.decode import Decoder
    from data.transforms import TrainTransform

    folder = make_folder(tmp_path, train=1, val=1)
    image = Decoder()((folder / "train/a/000.jpg").read_bytes())
    transform, rows = TrainTransform(16, (0.2, 1.0), 0.5, "bilinear", 0), torch.empty(3, 16, 16, 3, dtype=torch.uint8)
    for row, draw in zip(rows, (6, 7, 6), strict=True):
        transform(image, draw, 0, row)
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[1])


@pytest.mark.parametrize("text", ["128", "128:0.1", "128:0,160", "128:0,160:0", "128:0,160:1", "0:0", "12.5:0"])
def test_what_is_no_progression_is_refused(text):
    assert "--progressive needs" in refused(parse, ["--progressive", text])


def test_the_image_size_is_the_last_one(run):
    assert "drop --image-size" in refused(parse, ["--progressive", "16:0,32:0.5", "--image-size", "24"])
    flags = ["--progressive", "16:0,32:0.5", "--synthetic-size", 8, "-a", "toy_models:tiny", "--output-dir", "run"]
    assert run(*flags, base=FOLDER) == 0
    assert (load("run")["resolved"]["image_size"], load("run")["resolved"]["val_image_size"]) == (32, 32)


def test_sizes_that_no_epoch_reaches_are_told(run, capsys):
    flags = ["-a", "toy_models:tiny", "--synthetic-size", 8, "--epochs", 2]
    assert run(*flags, "--progressive", "16:0,24:0.5,32:0.75") == 0
    assert "note: 2 epochs never reach the size 32\n" in capsys.readouterr().out
    assert run(*flags, "--progressive", "16:0,32:0.5") == 0
    assert "never reach" not in capsys.readouterr().out

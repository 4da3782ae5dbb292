"""Unreadable images: the run ends and names the file, or goes on without it, alike on every rank."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
import toy_models
from dirty_files import ALL_KINDS, spoil, write_empty
from helpers import launch, make_folder, rows
from torch import Tensor

from data.folder import FolderIndex
from data.sampler import StepPlan
from trainer.bad_images import BadImages, allowed
from trainer.distributed import Group, Ranks
from trainer.levels import level_options
from trainer.metrics import RunningSums
from trainer.optim import build_optimizer
from trainer.precision import Precision
from trainer.profiling import StepProfiler
from trainer.step import Stepper
from trainer.timing import Clock, StepTimer

CPU = torch.device("cpu")
FOLDER = "-a toy_models:tiny --b 8 --image-size 32 --tensorboard false --print-freq 1 --epochs 1 --output-dir run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "set", train=18, val=5)


def records(kind: str) -> list[dict]:
    return rows(Path("run"), kind)


# fail, the default


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_fail_names_file_class_and_reason_last(run, folder, capfd, kind: str, split: str, workers: int):
    """R01."""
    path = folder / split / "b" / f"x-{kind}"
    ALL_KINDS[kind](path)
    assert run(folder, "-j", workers, base=FOLDER) == 5
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert last.startswith(f"error: cannot read {path} (class b): ")
    assert "--bad-images skip" in last
    reason = last.split("(class b): ")[1].split(";")[0]
    assert len(reason) > 8
    assert json.loads(Path("run/status.json").read_text())["state"] == "failed"


def test_a_huge_image_is_a_bad_one(run, folder, capfd, monkeypatch):
    """R23."""
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 700)
    assert run(folder, "-j", 0, base=FOLDER) == 5
    assert "40x40 is more than 1400 pixels" in capfd.readouterr().err
    assert run(folder, "-j", 2, "--max-image-pixels", 1600, "--output-dir", "other", base=FOLDER) == 0


# skip


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_leaves_them_out_of_every_count(run, folder, capsys, workers: int):
    """R02, R03."""
    bad = spoil(folder / "train/a") + spoil(folder / "val/b")[:3]
    (folder / "val/b/random.jpg").unlink()
    assert run(folder, "-j", workers, "--bad-images", "skip", base=FOLDER) == 0
    out = capsys.readouterr().out
    assert "note: 4 of 40 train images, 3 of 13 val images cannot be read and were left out" in out
    (epoch,) = records("epoch")
    assert epoch["images_seen"] == 36
    assert epoch["train_acc1"] * 36 / 100 == pytest.approx(round(epoch["train_acc1"] * 36 / 100), abs=1e-3)
    assert epoch["val_acc1"] * 10 / 100 == pytest.approx(round(epoch["val_acc1"] * 10 / 100), abs=1e-3)
    lines = [line.split("\t") for line in Path("run/bad_images.txt").read_text().splitlines()]
    assert {Path(line[1]) for line in lines} == set(bad)
    assert {(line[0], line[2]) for line in lines} == {("train", "a"), ("val", "b")}
    assert all(len(line) == 4 and len(line[3]) > 8 for line in lines)


def test_the_names_are_written_once_over_epochs_and_starts(run, folder):
    spoil(folder / "train/a")
    flags = "--bad-images", "skip", "-j", 0
    assert run(folder, *flags, "--epochs", 3, "--stop-after-epochs", 2, base=FOLDER.replace("--epochs 1", "")) == 0
    assert run("--resume", "run/checkpoints/last.pt", base=None) == 0
    assert len(Path("run/bad_images.txt").read_text().splitlines()) == 4


def test_what_an_earlier_start_found_counts_on(run, folder, capsys):
    """Names with a tab or a line end too."""
    write_empty(folder / "train/a/odd\tname\nof a.jpg")
    spoil(folder / "train/a")
    flags = "--bad-images", "skip", "-j", 0, "--max-bad-images", 4
    code, step = 0, 1
    assert run(folder, *flags, "--stop-after-steps", 1, base=FOLDER) in (0, 5)
    while code == 0 and step < 6:
        code, step = run("--resume", "run", "--stop-after-steps", 1, base=None), step + 1
    assert code == 5
    assert "5 bad images in train, more than the 4" in capsys.readouterr().err
    lines = Path("run/bad_images.txt").read_text().splitlines()
    assert len(lines) == len(set(lines)) == 5
    assert any("odd\\tname\\nof a.jpg\ta\tthe file is empty" in line for line in lines)
    # Nor does another start go on over what ended this one.
    assert run("--resume", "run", base=None) == 5
    assert "5 bad images in train, more than the 4" in capsys.readouterr().err


def test_a_file_that_was_mended_counts_no_more(run, folder, capsys):
    good = next((folder / "train/b").iterdir())
    spoilt = spoil(folder / "train/a")
    flags = "--bad-images", "skip", "-j", 0, "--max-bad-images", len(spoilt), "--epochs", 2
    assert run(folder, *flags, "--stop-after-steps", 5, base=FOLDER) == 0
    assert len(Path("run/bad_images.txt").read_text().splitlines()) == len(spoilt)
    for path in spoilt:
        path.write_bytes(good.read_bytes())
    write_empty(good)
    capsys.readouterr()
    assert run("--resume", "run", base=None) == 0
    assert f"1 of {36 + len(spoilt)} train images cannot be read" in capsys.readouterr().out
    assert len(Path("run/bad_images.txt").read_text().splitlines()) == len(spoilt) + 1


@pytest.mark.parametrize("split", ["train", "val"])
def test_more_than_allowed_ends_the_run(run, folder, capsys, split: str):
    spoil(folder / split / "a")
    assert run(folder, "-j", 0, "--bad-images", "skip", "--max-bad-images", 3, base=FOLDER) == 5
    error = capsys.readouterr().err.strip()
    assert f"bad images in {split}, more than the 3 that --max-bad-images allows; the last is {folder}" in error
    assert "\n" not in error


def test_the_limit():
    assert [allowed(None, size) for size in (5, 1000, 1300, 1_281_167)] == [10, 10, 13, 12811]
    assert [allowed(limit, 400) for limit in (0, 7, "2%", "0.5%")] == [0, 7, 8, 2]
    assert [allowed(limit, 100) for limit in ("29%", "57%", "58%")] == [29, 57, 58]
    assert allowed("0.7%", 1000) == 7


# One step


def step_with(
    batches: list[tuple[Tensor, Tensor]], planned: tuple[int, ...], model, policy: str = "skip", micro_batch=None
):
    """One step on ``model``; its gradients, and the images that it says it took."""
    group = Group(Ranks(), CPU)
    precision = Precision(level_options("O0", torch.bfloat16), torch.bfloat16, CPU)
    precision.convert_model(model)
    optimizer = build_optimizer(precision.bind(model), 1.0, 0.0, 0.0, CPU)
    stepper = Stepper(model, model, optimizer, precision, group, micro_batch=micro_batch)
    stepper.bad_images = BadImages(group, policy, None, {"train": 100, "val": 10})
    stepper.start(0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    sums = RunningSums(CPU)
    timer = StepTimer(Clock(CPU), 0, 1)
    plan = StepPlan(sum(planned), planned)
    taken = stepper.step(0, plan, iter(batches), 1.0, sums, timer, StepProfiler(None, None, CPU))
    moved = [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]
    return moved, taken, sums.take()


def make_batch(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, 16, 16, generator=generator).to(memory_format=torch.channels_last)
    return images, torch.randint(4, (count,), generator=generator)


def fresh(name: str):
    torch.manual_seed(5)
    return getattr(toy_models, name)(4).to(memory_format=torch.channels_last)


def test_each_readable_image_of_an_accumulated_step_weighs_the_same():
    first, second = make_batch(4, 1), make_batch(3, 2)
    whole = torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])
    expected, _, sums = step_with([whole], (7,), fresh("plain"))
    got, taken, other = step_with([first, second], (4, 8), fresh("plain"))
    assert taken == 7
    assert other == pytest.approx(sums)
    for one, two in zip(got, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("left", [0, 1])
def test_a_batch_with_too_few_readable_images_moves_nothing(left: int):
    """Neither weights nor batch norm's running statistics, which would need two values a channel."""
    real, poor = make_batch(6, 3), make_batch(6, 4)
    poor = poor[0][:left], poor[1][:left]
    alone, mixed = fresh("tiny"), fresh("tiny")
    expected, _, sums = step_with([real], (6,), alone)
    got, taken, other = step_with([poor, real], (6, 6), mixed)
    assert taken == 6
    assert other == pytest.approx(sums)
    for one, two in zip(got, expected, strict=True):
        torch.testing.assert_close(one, two)
    statistics = [key for key in alone.state_dict() if "running" in key]
    assert statistics
    for key in statistics:
        assert torch.equal(alone.state_dict()[key], mixed.state_dict()[key]), key


def test_a_step_without_a_readable_image_is_no_update():
    none = make_batch(6, 3)
    none = none[0][:0], none[1][:0]
    model = fresh("tiny")
    moved, taken, sums = step_with([none, none], (6, 6), model)
    assert (taken, sums) == (0, [0.0] * 4)
    assert not any(difference.any() for difference in moved)
    assert not any(value.any() for key, value in model.state_dict().items() if "running_mean" in key)


def test_pieces_of_a_batch_that_lost_an_image_are_never_single():
    """Batch norm at 1x1 pixels makes nothing of one value a channel."""
    real = make_batch(7, 3)
    stepper_model = fresh("tiny")
    sizes: list[int] = []
    stepper_model.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    step_with([real], (8,), stepper_model, micro_batch=2)
    assert sum(sizes) == 7
    assert min(sizes) >= 2


def test_a_single_image_that_was_planned_so_is_trained_on():
    _, taken, sums = step_with([make_batch(1, 1)], (1,), fresh("plain"))
    assert (taken, sums[3]) == (1, 1)


# Two ranks


def test_two_ranks_stay_in_step_and_agree_on_names(folder, tmp_path):
    """R02, R64: rank 1 meets whole batches without a readable image."""
    bad = spoil(folder / "train/a")
    for number, path in zip(itertools.count(), sorted(folder.glob("train/*/*.jpg")), strict=False):
        if number % 3 == 0:
            write_empty(path)
    count = sum(path.stat().st_size == 0 or path in bad for path in folder.glob("train/*/*.jpg"))
    done = launch(
        tmp_path, 2, folder, "-a", "toy_models:tiny", "--b", 2, "--num-classes", 2, "-j", 1, "--bad-images", "skip",
        "--max-bad-images", 50, "--output-dir", "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = (tmp_path / "run/bad_images.txt").read_text().splitlines()
    assert len(lines) == len(set(lines)) == count
    (epoch,) = rows(tmp_path / "run", "epoch")
    # A rank with one readable image of two leaves that one out as well.
    assert 10 <= epoch["images_seen"] <= 40 - count
    assert epoch["step"] == 10


@pytest.mark.parametrize("flags", [(), ("--bad-images", "skip", "--max-bad-images", 2)], ids=["fail", "limit"])
def test_two_ranks_end_with_the_code_for_bad_data(folder, tmp_path, flags):
    spoil(folder / "train/a")
    base = "-a toy_models:tiny -b 4 --num-classes 2 -j 1 --output-dir run"
    done = launch(tmp_path, 2, folder, *base.split(), *flags)
    assert done.returncode == 1
    assert "exitcode  : 5" in done.stderr
    assert "error: " in done.stderr
    assert "Traceback" not in done.stderr.split("error: ")[0]
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "failed"


def test_a_file_larger_than_memory_is_a_bad_one(run, folder, monkeypatch, capsys):
    victim = sorted((folder / "train/a").iterdir())[0]
    read = FolderIndex.read

    def failing(self: FolderIndex, number: int) -> bytes:
        if self.name(number) == str(victim):
            raise MemoryError
        return read(self, number)

    monkeypatch.setattr(FolderIndex, "read", failing)
    assert run(folder, "-j", 0, base=FOLDER) == 5
    assert f"cannot read {victim} (class a): needs more memory than there is" in capsys.readouterr().err
    assert run(folder, "--check-data", "-j", 0, base="") == 5
    assert "needs more memory than there is" in capsys.readouterr().out

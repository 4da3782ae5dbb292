"""Two to four gloo processes under torchrun."""

from __future__ import annotations

import json

import pytest
import torch
from helpers import launch, make_folder, rows
from toy_models import tiny

from trainer.build import static_graph_is_safe
from trainer.cli import parse


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """One run on two ranks, both memory formats, with 1x1, depthwise and odd-width convolutions."""
    folder = tmp_path_factory.mktemp("pair")
    done = {}
    for name in ("true", "false"):
        flags = f"-a toy_models:tiny --b 8 --synthetic-size 64 --channels-last {name} --tensorboard true".split()
        done[name] = launch(folder, 2, *flags, "--output-dir", name)
        assert done[name].returncode == 0, done[name].stderr[-2000:]
    return folder, done


def test_no_bucket_stride_warning(pair):
    """R48, R49."""
    for process in pair[1].values():
        assert "Grad strides do not match bucket view strides" not in process.stderr
        assert "Warning" not in process.stderr


def test_one_event_file_and_one_writer(pair):
    """R68."""
    folder, done = pair
    for name in done:
        assert len(list((folder / name).rglob("events.*"))) == 1
        assert len(rows(folder / name, "epoch")) == 1
        assert done[name].stdout.count("=> creating model") == 1


def test_equal_loss_on_both_memory_formats(pair):
    folder, _ = pair
    one, two = ([row["loss"] for row in rows(folder / name, "step")] for name in ("true", "false"))
    assert one == pytest.approx(two, abs=1e-3)
    assert len(one) == 4


def test_total_speed_is_that_of_all_ranks(pair):
    """R72."""
    folder, _ = pair
    for row in [*rows(folder / "true", "step"), *rows(folder / "true", "epoch")]:
        assert row["images_per_sec_total"] == pytest.approx(2 * row["images_per_sec_per_device"])
        assert row["images_seen"] == 16 * row["step"]


@pytest.mark.slow
def test_two_ranks_take_the_steps_of_one(tmp_path):
    """Without batch norm, two ranks of 8 with a short last step equal one rank of 16, rates included; with
    accumulation too. The file carries no prefix and goes on with another number of ranks (R78, R81)."""
    flags = ["-a", "toy_models:plain", "--synthetic-size", 42, "--lr", 0.5]
    runs = {"one": (1, 16, 1), "two": (2, 8, 1), "accumulated": (2, 4, 2)}
    for name, (ranks, batch, accumulation) in runs.items():
        done = launch(tmp_path, ranks, *flags, "--b", batch, "--grad-accum-steps", accumulation, "--output-dir", name)
        assert done.returncode == 0, done.stderr[-2000:]
    weights = {name: torch.load(tmp_path / name / "checkpoints/last.pt", weights_only=True) for name in runs}
    for name in ("two", "accumulated"):
        assert [row["lr"] for row in rows(tmp_path / name, "step")] == [
            row["lr"] for row in rows(tmp_path / "one", "step")
        ]
        assert [row["loss"] for row in rows(tmp_path / name, "step")] == pytest.approx(
            [row["loss"] for row in rows(tmp_path / "one", "step")], abs=1e-5
        )
        for key, value in weights["one"]["state_dict"].items():
            assert torch.allclose(value, weights[name]["state_dict"][key], atol=1e-5), (name, key)
    assert not any(key.startswith("module.") for key in weights["two"]["state_dict"])
    done = launch(tmp_path, 1, "--resume", "two", "--epochs", 2)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "steps took 16 images, now 8" in done.stdout


@pytest.mark.slow
def test_ten_validation_images_count_the_same_on_one_to_four_ranks(tmp_path):
    """R63."""
    make_folder(tmp_path / "data", train=16, val=5)
    torch.manual_seed(0)
    torch.save(tiny(2).state_dict(), tmp_path / "weights.pt")
    found = []
    for ranks in (1, 2, 3, 4):
        flags = [
            "data",
            "-a",
            "toy_models:tiny",
            "-b",
            3,
            "-e",
            "--weights",
            "weights.pt",
            "--num-classes",
            2,
            "--output-dir",
            f"run{ranks}",
            "-j",
            0,
        ]
        done = launch(tmp_path, ranks, *flags)
        assert done.returncode == 0, done.stderr[-2000:]
        (row,) = rows(tmp_path / f"run{ranks}", "epoch")
        found.append(row)
    assert [row["val_images"] for row in found] == [10] * 4
    assert len({row["val_acc1"] for row in found}) == 1
    assert [row["val_loss"] for row in found] == pytest.approx([found[0]["val_loss"]] * 4, rel=1e-6)


def test_one_rank_that_meets_a_nan_ends_both_with_exit_3(tmp_path):
    """R70."""
    flags = ["-a", "toy_models:nan_third_on_rank_1", "--b", 4, "--synthetic-size", 64, "-p", 1, "--output-dir", "run"]
    done = launch(tmp_path, 2, *flags)
    assert done.returncode == 1
    assert done.stderr.count("exitcode  : 3") == 2, "both ranks must end by themselves, neither by a signal"
    assert done.stderr.count("error: non-finite loss or gradient at step 2") == 1
    assert json.loads((tmp_path / "run/status.json").read_text())["exit_code"] == 3


def test_a_users_mistake_is_one_line_on_two_ranks(tmp_path):
    done = launch(tmp_path, 2, "--b", "0")
    assert done.stderr.count("error: --batch-size must be at least 1") == 1
    assert "exitcode : 2" in done.stderr.replace("  ", " ")


@pytest.mark.parametrize(("environ", "threads"), [({}, 2), ({"OMP_NUM_THREADS": "1"}, 1)])
def test_threads_a_rank(tmp_path, environ, threads, monkeypatch):
    """R71: usable cores over ranks, unless the user set OMP_NUM_THREADS; torchrun's own 1 is not the user's."""
    from trainer.hardware import usable_cores

    ranks = 1 if threads == 2 else 2
    done = launch(
        tmp_path, ranks, "-a", "toy_models:tiny", "--b", 8, "--synthetic-size", 16, "--output-dir", "run", env=environ
    )
    assert done.returncode == 0, done.stderr[-2000:]
    expected = max(1, usable_cores() // ranks) if not environ else 1
    assert f"{expected} threads a process" in done.stdout


def test_validation_uses_rank_0s_statistics_on_every_rank(tmp_path):
    """Two ranks have seen other images; the checkpoint (rank 0's statistics) on one rank gives the same loss."""
    flags = ["-a", "toy_models:tiny", "--b", 4, "--synthetic-size", 64, "--val-batch-size", 4, "--lr", 1]
    done = launch(tmp_path, 2, *flags, "--output-dir", "two")
    assert done.returncode == 0, done.stderr[-2000:]
    done = launch(tmp_path, 1, "-e", "--resume", "two", "--output-dir", "one")
    assert done.returncode == 0, done.stderr[-2000:]
    (trained,), (evaluated,) = rows(tmp_path / "two", "epoch"), rows(tmp_path / "one", "epoch")
    assert evaluated["val_images"] > 4
    assert trained["val_loss"] == pytest.approx(evaluated["val_loss"], rel=1e-5)


def test_a_larger_world_goes_on(tmp_path):
    """R78: one rank, then two; the next epoch has fewer steps than were taken."""
    flags = ["-a", "toy_models:tiny", "--b", 4, "--synthetic-size", 16, "--lr-warmup-epochs", 0]
    assert launch(tmp_path, 1, *flags, "--epochs", 2, "--stop-after-epochs", 1, "--output-dir", "run").returncode == 0
    done = launch(tmp_path, 2, "--resume", "run", "--epochs", 2)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [row["images_seen"] for row in rows(tmp_path / "run", "epoch")] == [16, 32]


@pytest.mark.slow
def test_a_restart_goes_on_in_the_same_folder(tmp_path):
    """torchrun --max-restarts: a rank is killed after the first epoch, workers and all."""
    make_folder(tmp_path / "data", train=8, val=4)
    flags = ["data", "-a", "toy_models:killed_after_an_epoch", "-b", 4, "-j", 1, "--epochs", 2, "--resume", "auto"]
    done = launch(tmp_path, 1, *flags, options=["--max-restarts", "1"])
    assert done.returncode == 0, done.stderr[-2000:]
    assert "going on with runs" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert [row["epoch"] for row in rows(folder, "epoch")] == [0, 1]


@pytest.mark.slow
def test_two_ranks_restart_after_an_error(tmp_path):
    flags = ["-a", "toy_models:broken_on_the_first_attempt", "--b", 4, "--synthetic-size", 16, "--resume", "auto"]
    done = launch(tmp_path, 2, *flags, options=["--max-restarts", "1"])
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("resume", [(), ("--resume", "auto")])
def test_a_restart_after_exit_3_ends_with_3(tmp_path, resume):
    flags = ["-a", "toy_models:nan_third", "--b", 4, "--synthetic-size", 64, "--output-dir", "run", *resume]
    done = launch(tmp_path, 2, *flags, options=["--max-restarts", "1"])
    assert done.returncode == 1
    assert done.stderr.count("exitcode  : 3") == 2
    assert done.stderr.count("not restarted, since run failed") == 1


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["googlenet", "efficientnet_b0"])
def test_a_static_graph_changes_no_number(tmp_path, arch):
    """Auxiliary heads and stochastic depth; --micro-batch 99 splits nothing, but takes the promise back."""
    flags = ["-a", arch, "-b", 2, "--image-size", 64, "--synthetic-size", 12, "--deterministic"]
    for name, more in (("static", []), ("free", ["--micro-batch", 99])):
        done = launch(tmp_path, 2, *flags, *more, "--output-dir", name)
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = (
        torch.load(tmp_path / name / "checkpoints/last.pt", weights_only=True)["state_dict"]
        for name in ("static", "free")
    )
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize(
    ("flags", "safe"),
    [
        ("-a resnet50", True),
        ("-a resnet50 --grad-accum-steps 2", False),
        ("-a resnet50 --micro-batch 8", False),
        ("-a resnet50 --compile", False),
        ("-a toy_models:tiny", False),
        ("-a timm:resnet50", False),
    ],
)
def test_a_static_graph_is_promised_where_it_holds(flags: str, safe: bool):
    assert static_graph_is_safe(parse(flags.split()).config) is safe


def test_the_epoch_line_tells_how_long_each_rank_waited(tmp_path):
    """R103."""
    done = launch(tmp_path, 2, "-a", "toy_models:tiny", "--b", 8, "--synthetic-size", 64, "--output-dir", "run")
    assert done.returncode == 0, done.stderr[-2000:]
    (epoch,) = rows(tmp_path / "run", "epoch")
    assert len(epoch["data_wait_share_by_rank"]) == 2
    assert epoch["data_wait_share_by_rank"][0] == epoch["data_wait_share"]
    assert " over 2 ranks" in next(line for line in done.stdout.splitlines() if line.startswith("Epoch 0: "))

"""Whole runs: the headline command, exit codes, folders, odd architectures, profiling."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import make_folder
from helpers import rows as records

ROOT = Path(__file__).parent.parent
LEVELS = ("O0", "O1", "O2", "O3")


def in_a_process(folder: Path, *flags: object, python: tuple[str, ...] = (), timeout: int = 200):
    """train.py as a user starts it."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = [sys.executable, *python, str(ROOT / "train.py"), *(str(flag) for flag in flags)]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=timeout, check=False
    )


def summary(folder: str) -> list[dict[str, str]]:
    with open(Path(folder, "summary.csv"), newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_the_headline_command_raises_no_warning(tmp_path, level):
    flags = "-a resnet50 --b 8 --channels-last true --image-size 32 --synthetic-size 16".split()
    done = in_a_process(tmp_path, *flags, "--opt-level", level, python=("-W", "error"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "data: made-up images (no DIR given)" in done.stdout


def test_a_run_under_w_error_with_workers_and_tensorboard(tmp_path):
    make_folder(tmp_path / "data", train=8, val=4)
    flags = "data -a toy_models:tiny -b 4 --image-size 32 --epochs 1 -j 1 --channels-last true".split()
    done = in_a_process(tmp_path, *flags, python=("-W", "error"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stderr == ""


def test_help_answers_without_torch(tmp_path):
    code = "import sys, train\ntry: train.main(['--help'])\nexcept SystemExit as e: print('exit', e.code, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip().endswith("exit 0 False")
    assert "precision, memory format, device:" in done.stdout


def test_a_wrong_folder_is_told_before_torch_is_there(tmp_path):
    code = "import sys, train\ncode = train.main(['nowhere'])\nprint('exit', code, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    assert done.stdout == "exit 2 False\n"
    assert done.stderr.startswith(f"error: no folder {tmp_path / 'nowhere'}: DIR must hold train/ and val/")


@pytest.mark.parametrize("level", LEVELS)
def test_loss_changes_and_the_class_is_learnt(run, level):
    """R38; made-up images show their class."""
    flags = ["--synthetic-size", 128, "--epochs", 4, "--lr", 1.0, "--opt-level", level, "--output-dir", "run"]
    assert run(*flags) == 0
    losses = [row["loss"] for row in records("run")]
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    last = summary("run")[-1]
    assert float(last["val_acc1"]) > 40


def test_formats_give_the_same_losses(run):
    for name in ("true", "false"):
        assert run("--channels-last", name, "--output-dir", name) == 0
    losses = [
        [json.loads(line)["loss"] for line in Path(name, "metrics.jsonl").read_text().splitlines()[:4]]
        for name in ("true", "false")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_deterministic_runs_are_bitwise_equal(run):
    make_folder(Path("data"), train=8, val=4)
    flags = "data -a toy_models:dropping -b 4 --image-size 32 --epochs 2 --deterministic --tensorboard no".split()
    for name, workers in (("one", 0), ("two", 2)):
        assert run(*flags, "-j", workers, "--output-dir", name, base="") == 0
        assert torch.are_deterministic_algorithms_enabled()
    one, two = (torch.load(f"{name}/checkpoints/last.pt", weights_only=True)["state_dict"] for name in ("one", "two"))
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_another_seed_is_another_run(run):
    for seed in (0, 1):
        assert run("--seed", seed, "--output-dir", f"run{seed}") == 0
    one, two = (torch.load(f"run{seed}/checkpoints/last.pt", weights_only=True)["state_dict"] for seed in (0, 1))
    assert not torch.equal(one["head.weight"], two["head.weight"])


def test_the_head_has_the_folders_classes(run):
    """R19, R20: three classes, Prec@5 included."""
    make_folder(Path("data"), classes=("a", "b", "c"), train=4, val=2)
    flags = "data -a toy_models:tiny -b 4 --image-size 32 --epochs 1 -j 0 --output-dir run".split()
    assert run(*flags, base="") == 0
    content = torch.load("run/checkpoints/last.pt", weights_only=True)
    assert content["state_dict"]["head.weight"].shape[0] == 3
    assert content["classes"] == ["a", "b", "c"]
    row = summary("run")[0]
    assert float(row["val_acc5"]) == 100


@pytest.mark.parametrize("arch", ["googlenet", "inception_v3"])
@pytest.mark.slow
def test_auxiliary_outputs_are_trained(run, arch):
    """R94."""
    size = 299 if arch == "inception_v3" else 64  # its auxiliary head takes no less
    flags = f"-a {arch} -b 4 --image-size {size} --synthetic-size 8 --num-classes 5 --output-dir run".split()
    assert run(*flags, base="") == 0


ARCHS = [
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_large",
    "regnet_y_400mf", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "vgg11_bn", "vit_b_32",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("arch", ARCHS)
def test_architectures_train_in_channels_last(run, arch, level):
    """R35 on a CPU: two steps each."""
    size = 224 if arch == "vit_b_32" else 64
    flags = f"-a {arch} -b 2 --image-size {size} --synthetic-size 4 --num-classes 5 --channels-last --lr 0.001".split()
    assert run(*flags, "--opt-level", level, "--val-batch-size", 2, base="") == 0


def test_prof_writes_a_trace_and_stops(run, capsys):
    assert run("--prof", 1, "--synthetic-size", 160, "--output-dir", "run") == 0
    assert "stopped after step 11" in capsys.readouterr().out
    trace = json.loads(Path("run/trace.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {"forward", "backward", "optimizer"} <= names


def test_clipping_and_smoothing_reach_the_step(run):
    """Both change what two otherwise equal runs do."""
    runs = {"plain": [], "clipped": ["--clip-grad-norm", 1e-3], "smoothed": ["--label-smoothing", 0.5]}
    for name, flags in runs.items():
        assert run(*flags, "--lr", 1, "--output-dir", name) == 0
    weights = {
        name: torch.load(f"{name}/checkpoints/last.pt", weights_only=True)["state_dict"]["head.weight"] for name in runs
    }
    rows = {name: json.loads(Path(name, "metrics.jsonl").read_text().splitlines()[0]) for name in runs}
    assert not torch.allclose(weights["plain"], weights["clipped"], atol=1e-4)
    assert rows["plain"]["loss"] == rows["clipped"]["loss"]
    assert rows["plain"]["loss"] != pytest.approx(rows["smoothed"]["loss"], abs=1e-4)


def test_cosine_and_accumulation_run(run):
    assert run("--lr-schedule", "cosine", "--grad-accum-steps", 2, "--epochs", 2, "--output-dir", "run") == 0
    rates = [row["lr"] for row in records("run")]
    assert len(rates) == 4
    assert rates == sorted(rates, reverse=True)


def test_prof_past_the_end_says_so(run, capsys):
    assert run("--prof", 100) == 0
    assert "no trace" in capsys.readouterr().out


def test_micro_batches_give_the_gradients_of_the_whole_batch(run):
    """Without batch norm; the learning rate stays that of the whole batch."""
    base = (
        "-a toy_models:plain --b 8 --synthetic-size 30 --image-size 32 --num-classes 4 --tensorboard false -p 1 --lr 2"
    )
    for name, flags in {
        "whole": [],
        "pieces": ["--micro-batch", 3],
        "accumulated": ["--micro-batch", 2, "--grad-accum-steps", 2],
    }.items():
        assert run(*flags, "--output-dir", name, base=base) == 0
    whole, pieces = (
        torch.load(f"{name}/checkpoints/last.pt", weights_only=True)["state_dict"] for name in ("whole", "pieces")
    )
    assert all(torch.allclose(whole[key], pieces[key], atol=1e-5) for key in whole)
    rows = {name: records(name) for name in ("whole", "pieces")}
    assert [row["lr"] for row in rows["whole"]] == [row["lr"] for row in rows["pieces"]]
    assert [row["images_seen"] for row in rows["whole"]] == [row["images_seen"] for row in rows["pieces"]]


@pytest.mark.slow
def test_digits_reach_97_percent(run, capsys):
    pytest.importorskip("sklearn", reason="scripts/make_digits.py needs scikit-learn")
    sys.path.insert(0, str(ROOT / "scripts"))
    import make_digits

    assert make_digits.main(["digits"]) == 0
    assert (
        run("digits", "-c", ROOT / "configs/digits.yaml", "--channels-last", "true", "--output-dir", "run", base="")
        == 0
    )
    best = max(float(row["val_acc1"]) for row in summary("run"))
    assert best >= 97


@pytest.mark.slow
def test_compiled_tiny_model(run):
    """The one use of torch.compile in the tests; the file carries no prefix of it."""
    assert run("--compile", "--output-dir", "run") == 0
    content = torch.load("run/checkpoints/last.pt", weights_only=True)
    assert "head.weight" in content["state_dict"]

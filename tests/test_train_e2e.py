"""Whole runs: the headline command, exit codes, folders, odd architectures, profiling."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers import make_folder

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


@pytest.mark.parametrize("level", LEVELS)
def test_loss_changes_and_the_class_is_learnt(run, level):
    """R38; made-up images show their class."""
    flags = ["--synthetic-size", 128, "--epochs", 4, "--lr", 1.0, "--opt-level", level, "--output-dir", "run"]
    assert run(*flags) == 0
    losses = [
        json.loads(line)["loss"] for line in Path("run/metrics.jsonl").read_text().splitlines() if '"step"' in line[:16]
    ]
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


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["nowhere"], "no folder"),
        (["--data-dir", "flat"], "train/"),
        (["--arch", "resnet5O"], "did you mean"),
        (["--opt-lvl", "O2"], "--opt-level"),
        (["--opt-level", "O1", "--keep-batchnorm-fp32", "True"], "O1"),
        (["--sync-bn"], "CUDA"),
        (["--device", "cuda"], "CUDA"),
        (["--weights", "none.pt"], "none.pt"),
        (["--synthetic-size", "1"], "too few"),
        (["--config", "none.yaml"], "none.yaml"),
        (["--resume", "none.pt"], "none.pt"),
        (["--epochs", "3", "--lr-warmup-epochs", "2"], "warmup"),
        (["--arch", "toy_models:missing"], "missing"),
        (["--arch", "no_such_module:f"], "no_such_module"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line_and_exit_2(run, capsys, flags, text):
    if torch.cuda.is_available() and ("--sync-bn" in flags or "cuda" in flags):
        pytest.skip("this machine has a GPU, where these flags are no mistake")
    Path("flat").mkdir()
    assert run(*flags) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert text in captured.err
    assert not list(Path().glob("runs/*")), "a mistake leaves no run folder"


def test_a_bug_in_the_users_model_is_exit_1_with_its_traceback(run, capsys):
    assert run("-a", "toy_models:broken", "--output-dir", "run") == 1
    assert "Traceback" in capsys.readouterr().err
    status = json.loads(Path("run/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 1)
    assert "this model is broken" in status["why"]


def test_traceback_is_shown_on_request(run, capsys):
    assert run("nowhere", "--traceback", base="") == 2
    assert "Traceback" in capsys.readouterr().err


def test_the_status_of_a_finished_run(run):
    assert run("--output-dir", "run") == 0
    assert json.loads(Path("run/status.json").read_text())["state"] == "done"
    environment = json.loads(Path("run/environment.json").read_text())
    for key in ("torch", "cpu", "cpu_features", "git_revision", "command", "cudnn", "threads"):
        assert key in environment


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
    rates = [
        json.loads(line)["lr"] for line in Path("run/metrics.jsonl").read_text().splitlines() if '"step"' in line[:16]
    ]
    assert len(rates) == 4
    assert rates == sorted(rates, reverse=True)


def test_prof_past_the_end_says_so(run, capsys):
    assert run("--prof", 100) == 0
    assert "no trace" in capsys.readouterr().out


def test_a_reader_that_has_gone_does_not_stop_the_training(tmp_path):
    flags = "-a toy_models:tiny -b 8 --image-size 32 --synthetic-size 64 --num-classes 4 -p 1 --tensorboard no --output-dir run"
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    command = f"{sys.executable} {ROOT / 'train.py'} {flags} | head -1"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environ, timeout=100, check=True, capture_output=True)
    for _ in range(100):
        status = json.loads((tmp_path / "run/status.json").read_text())["state"]
        if status == "done":
            break
        time.sleep(0.2)
    assert status == "done"


def test_a_model_without_anything_to_train_is_a_mistake(run, capsys):
    assert run("-a", "toy_models:frozen") == 2
    assert "no parameter to train" in capsys.readouterr().err


def test_enough_memory_is_not_mentioned(run, capsys, monkeypatch):
    from trainer import build

    monkeypatch.setattr(build, "free_memory", lambda: 1 << 34)
    assert run() == 0
    assert "GiB are free" not in capsys.readouterr().out


def test_too_little_memory_is_announced(run, capsys, monkeypatch):
    from trainer import build

    monkeypatch.setattr(build, "free_memory", lambda: 1 << 10)
    assert run() == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "GiB are free" in line]
    assert "lower --batch-size (now 8), --micro-batch or --image-size (now 32)" in line


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_is_one_sentence_and_exit_4(run, capsys, monkeypatch, error):
    from trainer.step import Stepper

    def full(*rest):
        raise error

    monkeypatch.setattr(Stepper, "step", full)
    assert run("--output-dir", "run") == 4
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "--batch-size 8" in message
    assert "--micro-batch 4" in message
    assert json.loads(Path("run/status.json").read_text())["exit_code"] == 4


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
    rows = {
        name: [
            json.loads(line) for line in Path(name, "metrics.jsonl").read_text().splitlines() if '"step"' in line[:16]
        ]
        for name in ("whole", "pieces")
    }
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

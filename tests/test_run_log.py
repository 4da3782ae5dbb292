"""Console, metrics.jsonl, summary.csv and TensorBoard tell the same story."""

from __future__ import annotations

import csv
import json
import math
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from helpers import rows

from trainer.run_log import EPOCH_TAGS, STEP_TAGS, SUMMARY_COLUMNS, RunFiles

LINE = re.compile(
    r"^Epoch: \[\d+\]\[\d+/\d+\]\tTime \d+\.\d{3} \(\d+\.\d{3}\)\tSpeed \d+\.\d{3} \(\d+\.\d{3}\)\t"
    r"Loss \d+\.\d{10} \(\d+\.\d{4}\)\tPrec@1 \d+\.\d{3} \(\d+\.\d{3}\)\tPrec@5 \d+\.\d{3} \(\d+\.\d{3}\)\tData wait "
)
TAGS = [
    "train/loss", "train/acc1", "train/acc5", "train/lr", "train/loss_scale", "train/skipped_steps", "perf/images_per_sec_total",
    "perf/images_per_sec_per_device", "perf/step_time_ms", "perf/data_wait_share", "perf/peak_memory_gib", "epoch/loss",
    "epoch/images_per_sec", "val/loss", "val/acc1", "val/acc5",
]  # fmt: skip


def scalars(folder: str) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_files_and_tensorboard_agree(run):
    """R89."""
    assert run("--output-dir", "run", "--epochs", 2, "--tensorboard", "true") == 0
    points = scalars("run")
    assert set(TAGS) <= set(points)
    for tag, key in STEP_TAGS.items():
        assert points[tag] == [(row["step"], pytest.approx(row[key], rel=1e-6)) for row in rows("run", "step")], tag
    for tag, key in EPOCH_TAGS.items():
        if tag.startswith(("val_ema/", "val_raw/")):  # of --model-ema
            assert tag not in points
            continue
        assert points[tag] == [(row["step"], pytest.approx(row[key], rel=1e-6)) for row in rows("run", "epoch")], tag
    with open("run/summary.csv") as stream:
        summary = list(csv.DictReader(stream))
    assert tuple(summary[0]) == SUMMARY_COLUMNS
    for written, row in zip(summary, rows("run", "epoch"), strict=True):
        for key in SUMMARY_COLUMNS:
            assert float(written[key]) == pytest.approx(row[key], rel=1e-5), key
    for row in [*rows("run", "step"), *rows("run", "epoch")]:
        assert {"epoch", "step", "images_seen"} <= set(row)
        assert row["images_seen"] == 8 * row["step"]


def test_a_resume_goes_on_with_the_steps_and_purges_what_came_after(run):
    """R87: strictly rising per tag over all event files; one event file a start."""
    flags = ["--epochs", 3, "--tensorboard", "true", "--output-dir", "run"]
    assert run(*flags, "--stop-after-epochs", 1) == 0
    checkpoint = Path("run/checkpoints/last.pt").read_bytes()
    time.sleep(1.1)  # event files are read in the order of their names, which hold seconds
    assert run("--resume", "run", "--stop-after-epochs", 1, base="") == 0
    Path("run/checkpoints/last.pt").write_bytes(checkpoint)  # as if the run had died before its second save
    time.sleep(1.1)
    assert run("--resume", "run", base="") == 0
    assert len(list(Path("run").glob("events.*"))) == 3
    for tag, points in scalars("run").items():
        steps = [step for step, _ in points]
        expected = {"train": list(range(1, 13)), "perf": list(range(1, 13)), "hparam": [12]}
        assert steps == expected.get(tag.split("/")[0], [4, 8, 12]), tag
    assert [row["step"] for row in rows("run", "step")] == list(range(1, 13))
    assert [row["epoch"] for row in rows("run", "epoch")] == [0, 1, 2]
    assert len(Path("run/summary.csv").read_text().splitlines()) == 4


def test_console_lines_are_the_originals(run, capsys):
    assert run("--epochs", 1, "-p", 2, "--synthetic-size", 56, "--num-classes", 7) == 0
    output = capsys.readouterr().out
    lines = [line for line in output.splitlines() if line.startswith("Epoch: [")]
    assert [line.split("\t")[0] for line in lines] == [f"Epoch: [0][{step}/7]" for step in (1, 2, 4, 6, 7)]
    assert all(LINE.match(line) for line in lines), lines
    assert re.search(r"^Test: \[1/1\]\tTime .*\tSpeed .*\tLoss .*\tPrec@1 .*\tPrec@5 ", output, re.MULTILINE)
    assert re.search(r"^ \* Prec@1 \d+\.\d{3} Prec@5 \d+\.\d{3}$", output, re.MULTILINE)
    assert re.search(r"^Done: best Prec@1 \d.* at epoch 0; .*; run folder runs/", output, re.MULTILINE)


def test_the_start_prints_what_the_original_printed_in_its_order(run, capsys):
    assert run("--opt-level", "O2") == 0
    output = capsys.readouterr().out
    expected = [
        "opt_level = O2", "keep_batchnorm_fp32 = None", "loss_scale = None", "CPU: ", "=> creating model 'toy_models:tiny'",
        "Selected optimization level O2:", "Defaults for this optimization level are:", "enabled                : True",
        "opt_level              : O2", "cast_model_type        : torch.bfloat16", "patch_torch_functions  : False",
        "keep_batchnorm_fp32    : True", "master_weights         : True", "loss_scale             : 1.0",
        "Processing user overrides", "After processing overrides, optimization options are:", "enabled                : True",
        "dtypes: ", "data: made-up images", "4 classes: Prec@5", "lr 0.1 x 8/256", "run folder runs/", "first batch",
    ]  # fmt: skip
    position = 0
    for text in expected:
        found = output.find(text, position)
        assert found >= 0, f"{text!r} is missing or out of order"
        position = found + len(text)


def test_non_finite_values_are_null_in_json(tmp_path):
    files = RunFiles(tmp_path, tensorboard=False)
    files.add_step({"epoch": 0, "step": 1, "images_seen": 8, "loss": math.nan, "grad_norm": math.inf, "acc1": 1.0})
    files.close()
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (row["loss"], row["grad_norm"], row["acc1"]) == (None, None, 1.0)


def test_a_half_written_line_does_not_survive_a_resume(tmp_path):
    good = json.dumps({"kind": "step", "step": 3})
    (tmp_path / "metrics.jsonl").write_text(good + "\n" + '{"kind": "step", "st')
    RunFiles(tmp_path, tensorboard=False, resumed_step=3).close()
    assert (tmp_path / "metrics.jsonl").read_text() == good + "\n"


@pytest.mark.parametrize("junk", [b"\xff\xfe\n", b"\0" * 512, b'{"step": 1e999}\n', b"[]\n", b'"x",y\n"half'], ids=repr)
@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.csv", "environment.json"])
def test_junk_that_a_lost_machine_left_in_the_records_stops_no_resume(run, junk, name):
    """After a power failure a file may end in zeros, or hold another file's bytes."""
    assert run("--output-dir", "run", "--epochs", 2, "--stop-after-epochs", 1) == 0
    with open(f"run/{name}", "ab") as stream:
        stream.write(junk)
    assert run("--resume", "run", base="") == 0
    assert [row["step"] for row in rows("run")] == list(range(1, 9))
    with open("run/summary.csv", newline="") as stream:
        assert [row["epoch"] for row in csv.DictReader(stream)] == ["0", "1"]


def test_hparams_config_and_environment_are_in_the_one_event_file(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run("--output-dir", "run", "--tensorboard", "true") == 0
    (event_file,) = Path("run").rglob("events.*")
    events = EventAccumulator(str(event_file.parent))
    events.Reload()
    tags = events.Tags()["tensors"]
    assert "config/text_summary" in tags
    assert "environment/text_summary" in tags
    assert events.SummaryMetadata("_hparams_/session_start_info").plugin_data.plugin_name == "hparams"
    assert events.Scalars("hparam/best_val_acc1")[0].step == 4
    assert b"toy_models:tiny" in event_file.read_bytes()


def test_no_event_file_without_tensorboard(run):
    assert run("--output-dir", "run") == 0
    assert not list(Path("run").rglob("events.*"))


def test_tensorboards_own_server_answers(run):
    assert run("--output-dir", "run", "--tensorboard", "true") == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "tensorboard.main",
        "--logdir",
        "run",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--load_fast",
        "false",
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for tag, count in (("train/loss", 4), ("epoch/images_per_sec", 1)):
            address = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?tag={tag}&run=."
            assert len(ask(address, deadline=time.monotonic() + 60)) == count, tag
    finally:
        server.terminate()
        server.wait(timeout=10)


def ask(address: str, deadline: float) -> list:
    """The server's points, once it has read the folder; empty where it does not in time."""
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return json.load(answer)
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    return []


def test_a_short_run_says_that_it_times_all_but_the_first_step(run, capsys):
    assert run() == 0
    assert "4 steps are too few to leave 5 warm-up steps out" in capsys.readouterr().out


def test_validation_that_comes_apart_is_announced():
    """R32."""
    from trainer.progress import val_explosion

    assert val_explosion({"train_loss": 0.7, "val_loss": 0.9}) is None
    assert val_explosion({"train_loss": 6.9, "val_loss": 7.1}) is None
    for broken in (33.0, math.nan, math.inf):
        assert "--opt-level O2" in (val_explosion({"train_loss": 0.7, "val_loss": broken}) or "")

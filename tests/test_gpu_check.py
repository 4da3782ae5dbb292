"""scripts/gpu_check.sh: its rehearsal on a CPU, its table from recorded files, the loops and checks it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import make_folder
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import gpu_table  # noqa: E402
import main_amp_style  # noqa: E402
import same_weights  # noqa: E402
import sync_bn_parity  # noqa: E402

SCRIPT = ROOT / "scripts" / "gpu_check.sh"
SUMMARY = "epoch,train_loss,images_per_sec_total,data_wait_share,peak_memory_gib\n0,6.9,{speed},0.25,{peak}\n"
JUNIT = '<testsuites><testsuite errors="0" failures="{bad}" skipped="1" tests="20" /></testsuites>'


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)


def part(out: Path, name: str, code: int = 0, limit: int = 60) -> Path:
    folder = out / name
    folder.mkdir(parents=True)
    (folder / "part.json").write_text(json.dumps({"code": code, "seconds": 12, "limit_s": limit}))
    return folder


def recorded_run(folder: Path, name: str, speed: float, peak: float = 10.0, code: int = 0) -> None:
    (folder / name).mkdir()
    (folder / name / "summary.csv").write_text(SUMMARY.format(speed=speed, peak=peak))
    (folder / f"{name}.log").write_text("begin\nerror: the last line\n\n")
    (folder / f"{name}.code").write_text(f"{code}\n")


def rows(out: Path, *parts: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Exit code, and (result, status) by what was measured."""
    (out / "machine.json").write_text(
        json.dumps({"gpus": 1, "gpu": "A GPU", "cpu": "A CPU", "cores": 8, "torch": "2.10"})
    )
    code = gpu_table.main([str(out), "--parts", *parts])
    return code, {row["what"]: (row["result"], row["status"]) for row in json.loads((out / "table.json").read_text())}


def test_formats_are_compared_round_by_round(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = part(tmp_path, "formats")
    for number, (plain, last) in enumerate([(100, 200), (100, 100), (50, 100)], 1):
        recorded_run(folder, f"contiguous_format-{number}", plain, peak=number)
        recorded_run(folder, f"channels_last-{number}", last)
    code, found = rows(tmp_path, "formats")
    assert code == 0
    assert found["channels_last / contiguous_format"][0].startswith("1.587 (2.000, 1.000, 2.000)")
    assert found["O2 contiguous_format"][0] == "79.4 img/s (100.0, 100.0, 50.0), peak 3.00 GiB"
    output = capsys.readouterr().out
    assert output.startswith("1 x A GPU, A CPU, 8 cores, torch 2.10\n\n| part ")
    assert output.rstrip() == (tmp_path / "table.md").read_text().rstrip()


def test_a_failed_run_keeps_the_others_and_says_why(tmp_path: Path) -> None:
    folder = part(tmp_path, "formats", code=1)
    recorded_run(folder, "contiguous_format-1", 100)
    recorded_run(folder, "channels_last-1", 150)
    recorded_run(folder, "contiguous_format-2", 100)
    recorded_run(folder, "channels_last-2", 0, code=4)
    code, found = rows(tmp_path, "formats")
    assert code == 1
    assert found["channels_last / contiguous_format"][0].startswith("1.500;")
    assert found["channels_last-2"] == ("exit code 4: error: the last line", "failed")


def test_a_part_that_was_stopped_names_the_command_it_was_in(tmp_path: Path) -> None:
    folder = part(tmp_path, "levels", code=124)
    recorded_run(folder, "O0", 100)
    (folder / "O1.log").write_text("Epoch: [0][10/30]\n")
    part(tmp_path, "jpeg", code=124, limit=0)
    code, found = rows(tmp_path, "levels", "jpeg", "resume")
    assert code == 1
    assert found["O0 channels_last"] == ("100.0 img/s, peak 10.00 GiB", "ok")
    assert found["O1"] == ("stopped after 12 s of the part: Epoch: [0][10/30]", "failed")
    whole = json.loads((tmp_path / "table.json").read_text())[-2:]
    assert [row["result"] for row in whole] == ["no time was left for it", "it was never started"]


@pytest.mark.parametrize(("bad", "status"), [(0, "ok"), (2, "failed")])
def test_the_tests_are_counted(tmp_path: Path, bad: int, status: str) -> None:
    (part(tmp_path, "tests", code=bool(bad)) / "pytest.xml").write_text(JUNIT.format(bad=bad))
    code, found = rows(tmp_path, "tests")
    assert (code, found["pytest -m gpu"]) == (bool(bad), (f"{19 - bad} passed, {bad} failed, 1 skipped", status))


def test_what_needs_cuda_is_not_run_and_no_failure(tmp_path: Path) -> None:
    folder = part(tmp_path, "sync_bn")
    assert sync_bn_parity.main(["--device", "cpu", "--json", str(folder / "parity.json")]) == 0
    (part(tmp_path, "tests") / "pytest.not_run").write_text("needs CUDA\n")
    code, found = rows(tmp_path, "tests", "sync_bn")
    assert code == 0
    assert {found[name] for name in ("pytest", "function, one GPU", "module, two GPUs")} == {("needs CUDA", "not run")}


def test_jpeg_and_benchmarks_are_read(tmp_path: Path) -> None:
    folder = part(tmp_path, "jpeg")
    (folder / "setting.json").write_text('{"workers": 8}')
    for number in (1, 2):
        recorded_run(folder, f"ours-{number}", 300)
        (folder / f"peer-{number}.json").write_text('{"images_per_sec": 200.0}')
    comparison = {"title": "t", "candidate": "ours", "baseline": "bare", "unit": "img/s", "ratio": 0.99}
    comparison["medians"] = {"ours": 99.0, "bare": 100.0}  # type: ignore[assignment]
    share = {"share_of_limit": {"ours": {"float16 product": 0.4}}, "product_flops_per_s": {"float16 product": [6e14]}}
    (part(tmp_path, "bench_step") / "bench_step.json").write_text(json.dumps({"comparisons": [comparison], **share}))
    code, found = rows(tmp_path, "jpeg", "bench_step")
    assert code == 0
    assert found["train.py, 8 workers"][0] == "300.0 img/s (300.0, 300.0), data wait 25 %"
    assert found["train.py / main_amp-style loop"][0] == "1.500 (1.500, 1.500)"
    assert found["t: ours / bare"][0] == "0.990, 99.0 against 100.0 img/s"
    assert found["share of the float16 product"][0] == "40.0 % of 600 TFLOP/s"


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_transposing_collate_keeps_every_pixel(memory_format: torch.memory_format) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), np.uint8)
    images, target = main_amp_style.transposing_collate(
        [(Image.fromarray(p), n) for n, p in enumerate(pixels)], memory_format
    )
    assert torch.equal(images, torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert images.is_contiguous(memory_format=memory_format)
    assert target.tolist() == [0, 1]


def test_the_prefetcher_hands_out_every_batch_normalised_and_in_order() -> None:
    batches = [(torch.full((2, 3, 4, 4), 50 * n, dtype=torch.uint8), torch.tensor([n, n])) for n in range(3)]
    found = list(main_amp_style.StreamPrefetcher(batches, torch.device("cpu"), torch.bfloat16))
    assert [target[0].item() for _, target in found] == [0, 1, 2]
    assert found[1][0].dtype is torch.bfloat16
    assert found[1][0][0, 0, 0, 0].item() == pytest.approx((50 / 255 - 0.485) / 0.229, abs=0.02)


def test_the_main_amp_style_loop_trains_and_says_its_speed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, result = make_folder(tmp_path / "photos"), tmp_path / "peer.json"
    flags = "-a toy_models:tiny -b 4 -j 0 --image-size 16 --device cpu --precision half --warmup-steps 1 -p 2".split()
    assert main_amp_style.main([str(data), *flags, "--json", str(result)]) == 0
    assert json.loads(result.read_text())["steady_steps"] == 3
    assert "Epoch: [0][4/4]\tSpeed" in capsys.readouterr().out
    assert main_amp_style.main([str(data), *flags, "--steps", "9"]) == 2
    assert main_amp_style.main([str(tmp_path / "none"), *flags]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_parity_notices_a_wrong_gradient_and_a_lost_format() -> None:
    case = sync_bn_parity.Case("channels_last", torch.float32, torch.device("cpu"))
    plain = case.plain()
    assert sync_bn_parity.compare("same", case, case.plain(), plain)["status"] == "ok"
    wrong = [*plain[:2], plain[2] * 1.01, *plain[3:]]
    assert "(weight gradient)" in sync_bn_parity.compare("wrong", case, wrong, plain)["detail"]
    lost = sync_bn_parity.compare(
        "lost", case, [plain[0].clone(memory_format=torch.contiguous_format), *plain[1:]], plain
    )
    assert (lost["status"], lost["detail"].endswith("memory format lost")) == ("failed", True)


def test_weights_that_differ_anywhere_are_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {"state_dict": {"w": torch.ones(2)}, "optimizer": {"state": {0: {"momentum_buffer": torch.zeros(2)}}}}
    one, other = tmp_path / "one.pt", tmp_path / "other.pt"
    torch.save(content, one)
    torch.save(content, other)
    assert same_weights.main([str(one), str(other)]) == 0
    content["optimizer"]["state"][0]["momentum_buffer"] = torch.full((2,), 1e-30)  # type: ignore[index]
    torch.save(content, other)
    assert same_weights.main([str(one), str(other)]) == 1
    assert "1 of 2 tensors differ: optimizer.state.0.momentum_buffer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--device", "cpu"], "add --smoke"),
        (["--only", "format"], "no part format"),
        (["--device"], "needs a value"),
        (["--smok"], "no option --smok"),
        (["--smoke", "."], "no empty folder"),
    ],
)
def test_a_mistake_ends_with_one_sentence(arguments: list[str], named: str) -> None:
    done = check(*arguments)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert named in done.stderr


def test_help_shows_usage_and_the_script_can_be_executed() -> None:
    done = check("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: bash scripts/gpu_check.sh")
    assert os.access(SCRIPT, os.X_OK)


def test_no_time_left_is_a_failure_of_the_part_alone(tmp_path: Path) -> None:
    done = check("--smoke", "--seconds", 0, "--only", "tests jpeg", tmp_path / "out")
    assert done.returncode == 1
    assert done.stdout.count("no time was left for it") == 2


@pytest.mark.slow
def test_the_rehearsal_fills_the_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = check("--smoke", out)
    table = (out / "table.md").read_text()
    assert (done.returncode, done.stderr) == (0, ""), table
    assert done.stdout.endswith(table)
    found = json.loads((out / "table.json").read_text())
    assert {row["part"] for row in found} == set(gpu_table.COLLECTORS)
    assert {row["what"] for row in found if row["status"] == "not run"} == {
        *("pytest", "sync-bn", "two-gpus-sync-bn", "function, one GPU", "module, two GPUs")
    }
    whats = " ".join(row["what"] for row in found)
    for what in (
        "channels_last / contiguous_format",
        "O3 ",
        "O1 bfloat16",
        "ours / bare",
        "device feed / ",
        "main_amp",
    ):
        assert what in whats
    assert not list(out.rglob("*.pt")), "checkpoints of 200 MB each must not stay"

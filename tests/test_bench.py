"""scripts/bench: statistics, order of arms, exit codes, heaps, and what the arms do. Never a time."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import bench_feed  # noqa: E402
import bench_heap  # noqa: E402
import bench_loader  # noqa: E402
import bench_step  # noqa: E402
import common  # noqa: E402
import machine  # noqa: E402

from trainer.errors import UserError  # noqa: E402

MAINS: dict[str, Callable[[list[str]], int]] = {
    "bench_step": bench_step.main,
    "bench_heap": bench_heap.main,
    "bench_feed": bench_feed.main,
    "bench_loader": bench_loader.main,
}
# Recorded: three rounds of a machine that grew slower, both arms alike.
SLOWING = {"ours": [10.0, 8.0, 4.0], "bare": [10.0, 10.0, 4.0]}


def comparison(values: dict[str, list[float]], required: bool = True) -> common.Comparison:
    return common.Comparison("", "ours", "bare", "img/s", values, required)


def test_a_ratio_is_taken_round_by_round() -> None:
    found = comparison(SLOWING)
    assert found.ratios == [1.0, 0.8, 1.0]
    assert found.ratio == 1.0
    assert found.spread == pytest.approx((0.9, 1.0))
    record = found.record()
    assert record["medians"] == {"ours": 8.0, "bare": 10.0}
    assert record["ratio_range"] == [0.8, 1.0]
    assert any("ours / bare" in line and "1.000" in line and "3 rounds" in line for line in found.lines())


def test_one_round_has_no_spread() -> None:
    assert comparison({"ours": [3.0], "bare": [2.0]}).spread == (1.5, 1.5)


def test_arms_take_turns_and_warm_up_is_thrown_away() -> None:
    calls: list[str] = []

    def arm(name: str) -> Callable[[], float]:
        def run() -> float:
            calls.append(name)
            return float(len(calls))

        return run

    values = common.interleave({"a": arm("a"), "b": arm("b")}, rounds=2, warmup_rounds=1)
    assert "".join(calls) == "abbaab"
    assert values == {"a": [4.0, 5.0], "b": [3.0, 6.0]}


@pytest.mark.parametrize(
    ("ours", "required", "code"),
    [(0.97, 0.98, 1), (0.98, 0.98, 0), (2.0, 0.98, 0), (float("nan"), 0.98, 1), (0.1, None, 0)],
)
def test_require(ours: float, required: float | None, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = comparison({"ours": [ours], "bare": [1.0]})
    assert common.check_required("bench_x", [found], required) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == code
    assert all("ours / bare" in line and "0.98" in line for line in lines)


def test_require_is_not_asked_of_the_ratios_beside() -> None:
    values = {"ours": [0.5], "bare": [1.0]}
    assert common.check_required("bench_x", [comparison(values, required=False)], 0.9) == 0
    assert common.check_required("bench_x", [comparison(values, required=False), comparison(values)], 0.9) == 1


def test_the_result_file_names_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_max=0")
    args = common.build_parser(None, 3, 0).parse_args(["--json", str(tmp_path / "new" / "result.json")])
    assert common.finish("bench_x", args, [comparison(SLOWING)], {"more": 1}) == 0
    content = json.loads((tmp_path / "new" / "result.json").read_text())
    assert content["comparisons"][0]["values"] == SLOWING
    assert content["more"] == 1
    described = content["machine"]
    assert {"cpu", "cpu_flags", "cores", "torch", "platform", "libc"} <= set(described)
    assert described["heap_variables"]["GLIBC_TUNABLES"] == "glibc.malloc.mmap_max=0"
    if platform.machine() == "x86_64" and sys.platform == "linux":
        assert "sse2" in described["cpu_flags"]


def test_without_json_the_result_goes_below_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args = common.build_parser(None, 3, 0).parse_args([])
    assert common.finish("bench_x", args, [comparison(SLOWING)], {}) == 0
    assert len(list((tmp_path / "runs" / "bench").glob("bench_x-*.json"))) == 1


@pytest.mark.parametrize("name", MAINS)
@pytest.mark.parametrize("argv", [["--no-such-flag"], ["--rounds", "0"], ["--require", "much"]])
def test_a_mistyped_option_is_one_sentence(name: str, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert MAINS[name](argv) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{name}: ")


def test_a_json_file_that_cannot_be_written_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    args = common.build_parser(None, 3, 0).parse_args(["--json", str(tmp_path / "file" / "x.json")])
    with pytest.raises(UserError, match="give another --json"):
        common.finish("bench_x", args, [comparison(SLOWING)], {})


def test_every_benchmark_shows_its_options_from_any_folder(tmp_path: Path) -> None:
    for script in sorted(BENCH.glob("bench_*.py")):
        done = subprocess.run(
            [sys.executable, str(script), "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: {script.name}")
        assert "--require" in done.stdout


# --- heap


def test_heap_variables() -> None:
    mine = {"A": "b", "MALLOC_TRIM_THRESHOLD_": "1", "GLIBC_TUNABLES": "glibc.malloc.mmap_max=3:glibc.cpu.x86_ibt=on"}
    assert machine.heap_environment("default", mine) == {"A": "b", "GLIBC_TUNABLES": "glibc.cpu.x86_ibt=on"}
    assert machine.heap_environment("default", {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=3"}) == {}
    retained = machine.heap_environment("retain", mine)["GLIBC_TUNABLES"].split(":")
    assert retained[0] == "glibc.cpu.x86_ibt=on"
    assert "glibc.malloc.mmap_max=0" in retained


HEAP_PROBE = """
import ctypes
names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Info = type("Info", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names]})
libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype, libc.free.argtypes = Info, ctypes.c_void_p, [ctypes.c_void_p]
block = libc.malloc(ctypes.c_size_t(64 << 20))
mapped = libc.mallinfo2().hblkhd
libc.free(block)
print(mapped >= 64 << 20, libc.mallinfo2().keepcost >= 60 << 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no such heap settings")
@pytest.mark.parametrize(("heap", "seen"), [("default", "True False"), ("retain", "False True")])
def test_a_child_python_runs_with_the_asked_heap(heap: str, seen: str) -> None:
    env = machine.heap_environment(heap)
    done = subprocess.run([sys.executable, "-c", HEAP_PROBE], env=env, capture_output=True, text=True, timeout=60)
    if "mallinfo2" in done.stderr:
        pytest.skip("glibc before 2.33 does not tell")
    assert (done.stdout.strip(), done.stderr) == (seen, "")


def test_a_benchmark_restarts_itself_once_under_the_asked_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execve", lambda path, argv, env: started.append(env))
    monkeypatch.delenv("BENCH_HEAP_ENTERED", raising=False)
    machine.enter_heap("retain")
    assert "mmap_max=0" in started[0]["GLIBC_TUNABLES"]
    monkeypatch.setenv("BENCH_HEAP_ENTERED", started[0]["BENCH_HEAP_ENTERED"])
    machine.enter_heap("retain")
    assert len(started) == 1


# --- bench_heap


def fake_train(calls: list[list[str]]) -> Callable[..., str]:
    """Writes the summary.csv of a run that is twice as fast where the heap is retained."""

    def run(command: list[str], env: dict[str, str], folder: Path) -> str:
        calls.append(command)
        assert "mmap_max" not in env.get("GLIBC_TUNABLES", "")
        options = dict(zip(command[2::2], command[3::2], strict=True))
        out = Path(options["--output-dir"])
        out.mkdir()
        retained = options["--cpu-heap"] == "retain"
        speed, peak = (20, 1.5) if retained else (10, 1.0)
        (out / "summary.csv").write_text(f"epoch,images_per_sec_total,peak_memory_gib,val_loss\n0,{speed},{peak},\n")
        return ""

    return run


def test_bench_heap_alternates_runs_in_both_formats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(bench_heap, "run_process", fake_train(calls))
    result = tmp_path / "heap.json"
    assert bench_heap.main(["-a", "resnet18", "--rounds", "2", "--json", str(result), "--require", "1.9"]) == 0
    of = [dict(zip(call[2::2], call[3::2], strict=True)) for call in calls]
    assert [run["--cpu-heap"] for run in of] == 2 * ["retain", "default", "default", "retain"]
    assert [run["--channels-last"] for run in of] == 4 * ["true"] + 4 * ["false"]
    content = json.loads(result.read_text())
    assert [found["ratio"] for found in content["comparisons"]] == [2.0, 2.0]
    assert content["memory"][0]["peak_memory_gib"] == {"retain": 1.5, "default": 1.0}
    assert bench_heap.main(["-a", "resnet18", "--rounds", "1", "--json", str(result), "--require", "2.1"]) == 1


def test_bench_heap_needs_steps_after_the_warm_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_heap.main(["--steps", "7", "--warmup-steps", "4"]) == 2
    assert "too few" in capsys.readouterr().err


@pytest.mark.slow
def test_bench_heap_runs_train_py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.flags import ROWS

    if not any("--cpu-heap" in row.flags for row in ROWS):
        pytest.skip("this train.py has no --cpu-heap")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    argv = "-a toy_models:tiny -b 4 --image-size 32 --num-classes 4 --steps 6 --warmup-steps 2 --memory-format channels_last --rounds 1"
    assert bench_heap.main([*argv.split(), "--json", str(tmp_path / "heap.json")]) == 0
    (peaks,) = json.loads((tmp_path / "heap.json").read_text())["memory"]
    assert min(peaks["peak_memory_gib"].values()) > 0


# --- bench_feed


@pytest.mark.parametrize("memory_format", ["channels_last", "contiguous_format"])
def test_bench_feed_hands_both_the_same_images(memory_format: str, tmp_path: Path) -> None:
    argv = f"-b 2 --batches 2 --image-size 8 --rounds 1 --device cpu --memory-format {memory_format}"
    assert bench_feed.main([*argv.split(), "--json", str(tmp_path / "feed.json")]) == 0
    (whole,) = json.loads((tmp_path / "feed.json").read_text())["comparisons"]
    assert whole["candidate"] == "device feed"
    assert whole["title"].startswith("whole")


@pytest.mark.gpu
def test_bench_feed_measures_the_bus_on_cuda(tmp_path: Path) -> None:
    argv = "-b 4 --batches 2 --image-size 32 --rounds 1 --device cuda --dtype float16"
    assert bench_feed.main([*argv.split(), "--json", str(tmp_path / "feed.json")]) == 0
    found = json.loads((tmp_path / "feed.json").read_text())["comparisons"]
    assert [comparison["title"].split(":")[0] for comparison in found] == ["whole", "bus"]

"""scripts/bench: heaps that a benchmark asks for, and runs on each of them."""

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

import bench_heap  # noqa: E402
import machine  # noqa: E402

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

"""scripts/bench: statistics, order of arms, exit codes, heaps, and what the arms do. Never a time."""

from __future__ import annotations

import json
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

"""scripts/bench/bench_step.py: both loops do the same work, ours logs all of it, the share of the limit is written."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parent.parent / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import bench_step  # noqa: E402

TINY_STEP = "-a toy_models:tiny -b 4 --image-size 16 --num-classes 4 --device cpu --matmul-size 16 --steps 3".split()


@pytest.fixture
def keep_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("keep_threads")
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_both_loops_of_bench_step_train_the_same_weights(level: str, tmp_path: Path) -> None:
    args = bench_step.parse([*TINY_STEP, "--opt-level", level, "--print-freq", "2"])
    loops = bench_step.Loops(args, tmp_path)
    arms = loops.arms()
    assert loops.flops_of_image() > 0
    for _ in range(2):
        assert arms["ours"]() > 0
        assert arms["bare"]() > 0
    loops.ours.close()
    ours, bare = loops.stepper.model.state_dict(), loops.bare.model.state_dict()
    assert ours.keys() == bare.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, bare[name], rtol=1e-2 if level == "O3" else 1e-4, atol=1e-4)


@pytest.mark.usefixtures("keep_threads")
def test_our_loop_of_bench_step_logs_everything_and_validates_nothing(tmp_path: Path) -> None:
    loops = bench_step.Loops(bench_step.parse([*TINY_STEP, "--print-freq", "1"]), tmp_path)
    loops.arms()["ours"]()
    loops.ours.close()
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in records] == ["step"] * 3 + ["epoch"]
    assert list(tmp_path.glob("events.out.tfevents.*"))
    console = (tmp_path / "console.log").read_text()
    assert "Epoch: [0][3/3]" in console
    assert "Test:" not in console


@pytest.mark.usefixtures("keep_threads")
def test_bench_step_writes_the_share_of_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "step.json"
    assert bench_step.main([*TINY_STEP, "--rounds", "2", "--json", str(result), "--opt-level", "O1"]) == 0
    content = json.loads(result.read_text())
    assert len(content["comparisons"][0]["ratios"]) == 2
    assert set(content["share_of_limit"]) == {"ours", "bare"}
    assert set(content["share_of_limit"]["ours"]) == {"float32 product", "bfloat16 product"}
    assert content["flops_of_image"] > 0
    assert "ours / bare" in capsys.readouterr().out


def test_the_share_of_the_limit_is_flops_over_flops() -> None:
    values = {"ours": [10.0, 20.0], "bare": [20.0, 20.0], "float32 product": [4e9, 4e9]}
    found = bench_step.limit_shares(values, 1e8)
    assert found["share_of_limit"]["ours"]["float32 product"] == pytest.approx(0.375)
    assert found["share_of_limit"]["bare"]["float32 product"] == pytest.approx(0.5)

"""scripts/layout_cost.py: what is a copy and what is not, the break-even, what it writes. Never a time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "bench")]

import break_even  # noqa: E402
import conversions  # noqa: E402
import layer_arms  # noqa: E402
import layer_calls  # noqa: E402
import layout_cost  # noqa: E402
import stopwatch  # noqa: E402

from trainer.errors import UserError  # noqa: E402

CPU = torch.device("cpu")
TINY = "--device cpu --cpu-heap default --min-time-ms 0 --warmup-rounds 0 --rounds 2".split()
LAST, CONTIGUOUS = "channels_last", "contiguous_format"


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def copied(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> dict[tuple[str, str], int]:
    costs = conversions.ShapeCosts(shape, dtype, CPU)
    costs.measure(1, 0, 0.0)
    return {(cost.way.source, cost.way.name): cost.copied_bytes for cost in costs.costs}


def test_only_a_change_of_format_and_a_clone_copy() -> None:
    found = copied((2, 3, 4, 5), torch.bfloat16)
    every = 2 * 3 * 4 * 5 * 2
    assert found == {
        (CONTIGUOUS, "x.contiguous()"): 0,
        (CONTIGUOUS, "x.to(memory_format=torch.channels_last)"): every,
        (CONTIGUOUS, "x.contiguous(memory_format=torch.channels_last)"): every,
        (CONTIGUOUS, "x.clone()"): every,
        (CONTIGUOUS, "x.permute(0, 2, 3, 1)"): 0,
        (CONTIGUOUS, "x.permute(0, 2, 3, 1).contiguous()"): every,
        (LAST, "x.contiguous()"): every,
        (LAST, "x.to(memory_format=torch.channels_last)"): 0,
        (LAST, "x.contiguous(memory_format=torch.channels_last)"): 0,
        (LAST, "x.clone()"): every,
        (LAST, "x.permute(0, 2, 3, 1)"): 0,
        (LAST, "x.permute(0, 2, 3, 1).contiguous()"): 0,
    }


def test_one_channel_is_in_both_formats_already() -> None:
    found = copied((2, 1, 4, 5))
    assert found[CONTIGUOUS, "x.contiguous(memory_format=torch.channels_last)"] == 0
    assert found[LAST, "x.contiguous()"] == 0


def test_rates_count_reading_and_writing() -> None:
    cost = conversions.Cost(conversions.TO_LAST, ((), ()), 10**9, [0.5], 0.5)
    assert cost.gb_per_s == pytest.approx(4.0)
    view = conversions.Cost(conversions.TO_LAST, ((), ()), 0, [1e-6], 1e-6)
    assert view.gb_per_s is None
    assert "no copy" in view.line()


def found_for(contiguous: float, last: float, requires_grad: bool = True) -> dict[str, Any]:
    """Conversions to channels-last take 3 s, back 2 s."""
    costs = conversions.ShapeCosts((2, 3, 4, 5), torch.float32, CPU)
    ways = {conversions.TO_LAST: 3.0, conversions.TO_CONTIGUOUS: 2.0}
    costs.costs = [conversions.Cost(way, ((), ()), 480, [seconds], seconds) for way, seconds in ways.items()]
    spec = layer_calls.TensorSpec((2, 3, 4, 5), torch.float32, requires_grad)
    case = layer_calls.LayerCase((), "Conv2d(3, 3)", ((spec,), {}), True, False, ["conv"], 1)
    times = stopwatch.Times({CONTIGUOUS: [[contiguous, 0.0]] * 6, LAST: [[last, 0.0]] * 6})
    return break_even.break_even(costs, layer_arms.LayerResult(case, [], times))


@pytest.mark.parametrize(
    ("contiguous", "last", "requires_grad", "better", "convolutions"),
    [
        (4.0, 2.0, True, LAST, 3),  # 3 + 2 over 2
        (4.0, 2.0, False, LAST, 2),  # 3 over 2
        (2.0, 6.0, False, CONTIGUOUS, 1),  # 2 over 4
        (2.0, 3.0, True, CONTIGUOUS, 5),
        (2.0, 2.0, True, None, None),
    ],
)
def test_break_even(
    contiguous: float, last: float, requires_grad: bool, better: str | None, convolutions: int | None
) -> None:
    found = found_for(contiguous, last, requires_grad)
    assert (found["better"], found["convolutions"]) == (better, convolutions)
    text = break_even.line(found)
    assert ("no conversion pays" in text) == (better is None)
    assert better is None or f"paid by {convolutions} such convolution" in text


def test_shapes_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    flags = "--shape 2,8,6,6 --shape 2,3,5,5 --shape 2,8,6,6 --dtype bfloat16".split()
    assert layout_cost.main([*flags, *TINY, "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "heap default (as asked)" in text.splitlines()[0]
    assert "no copy" in text
    assert "GB/s" in text
    content = json.loads(out.read_text())
    assert [(shape["shape"], shape["dtype"]) for shape in content["shapes"]] == [
        ([2, 8, 6, 6], "bfloat16"),
        ([2, 3, 5, 5], "bfloat16"),
    ]
    for shape in content["shapes"]:
        (found,) = shape["break_even"]
        assert found["with_gradient"]
        assert len(shape["ways"]) == len(conversions.WAYS)
        assert all((way["gb_per_s"] is None) == (way["copied_bytes"] == 0) for way in shape["ways"])


def test_shapes_of_a_model(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    model = "-a toy_layers:layers -b 2 --image-size 8 --num-classes 4".split()
    assert layout_cost.main([*model, *TINY, "--json", str(out)]) == 0
    shapes = {tuple(shape["shape"]): shape for shape in json.loads(out.read_text())["shapes"]}
    assert set(shapes) == {(2, 3, 8, 8), (2, 16, 8, 8), (2, 16, 4, 4)}
    modules = [found["modules"] for found in shapes[2, 16, 8, 8]["break_even"]]
    assert modules == [["one", "two"], ["narrow"]]
    assert not shapes[2, 3, 8, 8]["break_even"][0]["with_gradient"]


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--shape", "2,3,4"],
        ["--shape", "2,0,4,4"],
        ["--shape", "2,3,4,4", "-a", "resnet18"],
        ["-a", "resnet18", "--dtype", "float32"],
        ["-a", "toy_layers:flat", "-b", "2", "--image-size", "8", "--num-classes", "4"],
        ["--shape", "2,3,4,4", "--require", "1"],
    ],
)
def test_mistakes_end_with_one_sentence(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert layout_cost.main([*flags, *TINY]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("layout_cost: ")


def test_help_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        layout_cost.parse(["--help"])
    assert caught.value.code == 0
    assert "N,C,H,W" in capsys.readouterr().out
    with pytest.raises(UserError):
        layout_cost.parse(["--shape", "x"])

"""scripts/profile_layers.py: which calls it finds and groups, what it calls slower, what it writes. Never a time."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "bench")]

import both_formats  # noqa: E402
import layer_arms  # noqa: E402
import layer_calls  # noqa: E402
import layer_report  # noqa: E402
import layout_cost  # noqa: E402
import profile_layers  # noqa: E402
import stopwatch  # noqa: E402

CPU = torch.device("cpu")
TINY = "-b 2 --image-size 8 --num-classes 4 --device cpu --cpu-heap default --min-time-ms 0 --warmup-rounds 0".split()


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def cases_of(*flags: str, arch: str = "toy_layers:layers") -> list[layer_calls.LayerCase]:
    both = both_formats.BothFormats(profile_layers.parse(["-a", arch, *TINY, *flags]))
    model, images = both.steppers["channels_last"].model, both.images("channels_last")
    return layer_calls.record_calls(model, CPU, lambda: both.forward("channels_last", images))


def by_name(cases: list[layer_calls.LayerCase]) -> dict[str, layer_calls.LayerCase]:
    return {"+".join(case.names): case for case in cases}


def test_calls_are_grouped_by_type_settings_and_shape() -> None:
    found = by_name(cases_of())
    # "relu" twice: one module on two shapes; "twice" two times: one of them without gradients. Linear has no 4-D input.
    names = "stem relu one+two add narrow pool relu twice thrice slow lonely plain twice head"
    assert sorted(found) == sorted({*names.split()} - {"head"})
    cases = cases_of()
    assert sorted(case.names[0] for case in cases).count("relu") == 2
    assert sorted(case.grad for case in cases if case.names == ["twice"]) == [False, True]
    assert [spec.requires_grad for spec in layer_calls.leaves_of(found["stem"].inputs, layer_calls.TensorSpec)] == [
        False
    ]
    assert found["add"].shapes == "2x16x8x8 float32 + 2x16x8x8 float32"
    assert (found["one+two"].met, found["plain"].met) == (2, 0)


def test_a_module_called_in_evaluation_alone_is_met_there_alone() -> None:
    assert "eval_only" not in by_name(cases_of())
    found = by_name(cases_of("--mode", "eval"))
    assert "eval_only" in found
    assert not any(case.grad for case in found.values())


def test_precision_is_that_of_train_py() -> None:
    found = by_name(cases_of("--opt-level", "O1", "--amp-dtype", "bfloat16"))
    assert (found["stem"].shapes, found["one+two"].shapes) == ("2x3x8x8 float32", "2x16x8x8 bfloat16")
    assert found["one+two"].autocast
    found = by_name(cases_of("--opt-level", "O2", "--amp-dtype", "bfloat16"))
    assert found["stem"].shapes == "2x3x8x8 bfloat16"
    assert not found["stem"].autocast


@pytest.mark.parametrize("memory_format", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("inplace", [False, True])
def test_each_arm_gives_the_module_its_format_in_both_passes(memory_format: str, inplace: bool) -> None:
    seen: list[tuple[str, bool, bool]] = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, images: torch.Tensor) -> torch.Tensor:
            seen.append(("forward", *formats(images)))
            return images.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            seen.append(("backward", *formats(gradient)))
            return gradient

    class Module(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            output = Watched.apply(images)
            return images.mul_(2) + output if inplace else output

    def formats(tensor: torch.Tensor) -> tuple[bool, bool]:
        return tensor.is_contiguous(), tensor.is_contiguous(memory_format=torch.channels_last)

    spec = layer_calls.TensorSpec((2, 3, 4, 5), torch.float32, True)
    case = layer_calls.LayerCase((), "Module()", ((spec,), {}), True, False, ["m"], 1)
    arm = layer_arms.LayerArm(Module(), case, memory_format, torch.bfloat16, CPU)
    for _ in range(2):
        assert len(stopwatch.time_call(arm.call, CPU)) == 2
    last = memory_format == "channels_last"
    assert seen == [("forward", not last, last), ("backward", not last, last)] * 2


def test_an_in_place_module_finds_the_same_input_at_every_call() -> None:
    sums: list[float] = []

    class Doubling(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            sums.append(float(images.detach().sum()))
            return images.mul_(2)

    for requires_grad in (True, False):
        spec = layer_calls.TensorSpec((2, 3, 4, 5), torch.float32, requires_grad)
        case = layer_calls.LayerCase((), "Doubling()", ((spec,), {}), True, False, ["m"], 1)
        arm = layer_arms.LayerArm(Doubling(), case, "channels_last", torch.bfloat16, CPU)
        for _ in range(2):
            stopwatch.time_call(arm.call, CPU)
    assert sums[0] == sums[1]
    assert sums[2] == sums[3]


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        ([1.2] * 8 + [0.7], "slower"),  # one round is no evidence against eight
        ([1.2] * 7 + [0.7, 0.9], "unclear"),
        ([1.2] * 5 + [0.7], "unclear"),
        ([0.8, 0.7, 0.9, 0.6, 0.8, 0.9], "faster"),
        ([1.5] * 5, "unclear"),
    ],
)
def test_slower_only_beyond_the_spread(rounds: list[float], verdict: str) -> None:
    assert stopwatch.Factor(rounds).verdict == verdict


@pytest.mark.parametrize("rounds", [3, 5, 6, 7, 9, 12, 20])
def test_without_a_difference_few_modules_are_called_slower(rounds: int) -> None:
    """At most one in forty, but for what 4000 draws leave to chance (four deviations)."""
    draw = random.Random(rounds)
    found = [stopwatch.Factor([draw.lognormvariate(0, 0.1) for _ in range(rounds)]).verdict for _ in range(4000)]
    assert found.count("slower") <= 4000 * 0.025 + 4 * (4000 * 0.025 * 0.975) ** 0.5
    assert rounds < 6 or found.count("slower") > 0


def test_loss_and_factor_never_disagree() -> None:
    """By the medians of the arms "a" is slower; in every round but one it is faster."""
    a, b = [2.0, 2.0, 3.0, 3.0, 4.0, 5.0, 5.0, 9.0, 9.0], [2.1, 2.1, 3.1, 3.1, 2.0, 5.1, 5.1, 9.1, 9.1]
    times = stopwatch.Times({"a": [[seconds] for seconds in a], "b": [[seconds] for seconds in b]})
    assert times.median("a") > times.median("b")
    assert times.factor("a", "b").verdict == "faster"
    assert times.difference("a", "b") == pytest.approx(-0.1)


def result(name: str, contiguous: float, last: float, calls: int = 1, met: int | None = None) -> layer_arms.LayerResult:
    case = layer_calls.LayerCase(
        (), "Conv2d(8, 8)", ((), {}), True, False, [name] * calls, calls if met is None else met
    )
    parts = {"contiguous_format": [[contiguous, contiguous]] * 6, "channels_last": [[last, last]] * 6}
    return layer_arms.LayerResult(case, [], stopwatch.Times(parts))


def test_totals_are_of_all_calls_and_the_worst_loss_is_first() -> None:
    results = [
        result("small", 0.001, 0.009),
        result("often", 0.010, 0.011, calls=20),
        result("better", 0.020, 0.010, calls=2),
        result("even", 0.005, 0.005),
        result("never met", 0.005, 0.5, met=0),
    ]
    step = stopwatch.Times({"contiguous_format": [[2.0]], "channels_last": [[1.0]]})
    assert [found.case.names[0] for found in layer_report.slower(results)] == ["often", "small"]
    summary = layer_report.summarize(results, step)
    assert summary["loss_s"] == pytest.approx(20 * 2 * 0.001 + 2 * 0.008)
    assert summary["gain_s"] == pytest.approx(2 * 2 * 0.010)
    assert summary["layers_share_of_step"]["contiguous_format"] == pytest.approx((0.002 + 0.4 + 0.08 + 0.01 + 0.01) / 2)
    text = "\n".join(layer_report.lines(results, summary))
    assert text.index("often (+19)") < text.index("small")
    assert "not counted: never met" in text


@pytest.mark.parametrize(
    ("module", "cliffs"),
    [
        (nn.Conv2d(16, 16, 3), []),
        (nn.Conv2d(64, 64, 3, groups=8), ["grouped"]),
        (nn.Conv2d(16, 16, 3, groups=16), ["depthwise"]),
        (nn.Conv2d(16, 13, 1), ["16 to 13 channels: not multiples of 8"]),
        (nn.BatchNorm2d(3), []),
    ],
)
def test_known_cliffs_are_named(module: nn.Module, cliffs: list[str]) -> None:
    assert layer_calls.cliffs_of(module) == cliffs


def test_the_planted_slow_module_is_named_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "out.json"), "--png", str(tmp_path / "new" / "out.png")]
    assert profile_layers.main(["-a", "toy_layers:layers", *TINY, "--rounds", "6", *files]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "slow SlowInChannelsLast() on 2x16x4x4 float32" in out[out.index(next(x for x in out if "loss ms" in x)) + 1]
    assert any(line.startswith("not timed: lonely") and "not alone" in line for line in out)
    assert "heap default (as asked)" in out[0]
    content = json.loads((tmp_path / "out.json").read_text())
    layers = {layer["modules"][0]: layer for layer in content["layers"]}
    assert layers["slow"]["verdict"] == "slower"
    assert layers["slow"]["loss_s_a_step"] > 0.01
    assert layers["narrow"]["cliffs"] == ["depthwise"]
    assert layers["one"]["calls"] == 2
    assert all(len(layer["rounds_s"]["channels_last"]) == 6 for layer in layers.values() if "rounds_s" in layer)
    assert content["heap"]["choice"] == "default"
    assert (tmp_path / "new" / "out.png").read_bytes()[:4] == b"\x89PNG"


def test_matplotlib_is_needed_for_a_picture_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert profile_layers.main(["-a", "toy_layers:layers", *TINY, "--png", str(tmp_path / "out.png")]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


def test_mistakes_end_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (["-a", "resnet5O"], [], ["-a", "resnet18", "--cpu-heap", "auto"], ["-a", "toy_layers:flat_only"]):
        assert profile_layers.main([*TINY, *flags]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert lines[-1].startswith("profile_layers: ")
        assert not any("Traceback" in line for line in lines)


@pytest.mark.slow
def test_resnext50_is_profiled(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = "-b 2 --image-size 64 --device cpu --cpu-heap default --min-time-ms 0 --rounds 1 --warmup-rounds 0".split()
    assert profile_layers.main(["-a", "resnext50_32x4d", *flags, "--json", str(out)]) == 0
    content = json.loads(out.read_text())
    grouped = [layer for layer in content["layers"] if "grouped" in layer["cliffs"]]
    assert sum(layer["calls"] for layer in grouped) == 16
    assert all("factor" in layer for layer in content["layers"])


@pytest.mark.parametrize("main", [profile_layers.main, layout_cost.main])
def test_a_size_that_a_model_does_not_take_is_one_sentence(main, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-a", "alexnet", "--image-size", "8", "-b", "2", "--device", "cpu"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "-a alexnet cannot take a batch of (2, 3, 8, 8)" in error

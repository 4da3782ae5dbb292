"""scripts/check_parity.py: equal formats pass at every level; a layer that is wrong in one of them is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from parity_nets import good

ROOT = Path(__file__).resolve().parent.parent
for folder in ("scripts", "scripts/bench", "scripts/parity"):
    sys.path.insert(0, str(ROOT / folder))

import check_parity  # noqa: E402
import parity_cases  # noqa: E402
import parity_layers  # noqa: E402
import parity_models  # noqa: E402

Shown = pytest.CaptureFixture[str]
HERE = "parity_nets"
SMALL = ("--image-size", "16", "--num-classes", "4", "--device", "cpu")


def check(factory: str, *flags: str) -> int:
    arch = factory if ":" in factory else f"{HERE}:{factory}"
    return check_parity.main(["-a", arch, *SMALL, *flags])


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_good_model_is_equal_at_every_level(level: str, capsys: Shown):
    assert check("toy_models:tiny", "--opt-level", level) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[-1].startswith("equal within tolerance: all 9 checks; 2 SyncBN checks not run")
    assert "SyncBN, function, one GPU: not run, needs CUDA" in output


@pytest.mark.parametrize("model", ["good", "drops", "toy_models:dropping", "toy_models:odd_ranks", "toy_models:plain"])
def test_no_false_alarm(model: str):
    """In-place ReLU that serves twice, dropout on 4-D and 2-D values, weights of five dimensions, no batch norm."""
    assert check(model) == 0


def test_two_levels_are_equal_within_the_coarser_tolerance(capsys: Shown):
    assert check("good", "--opt-level", "O2", "--against", "O0") == 0
    output = capsys.readouterr().out
    assert "train: O0 (float32), channels_last against O2 (bfloat16), channels_last: ok" in output
    assert "tolerance 2.0e-02" in output


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_a_layer_that_reads_raw_memory_is_named_with_its_parameter(level: str, capsys: Shown, tmp_path: Path):
    assert check("raw_memory", "--opt-level", level, "--json", str(tmp_path / "found.json")) == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("different results in 3 of 9 checks")
    assert "first output of second, worst gradient of second.weight" in last
    content = json.loads((tmp_path / "found.json").read_text())
    train = content["checks"][0]
    assert not train["passed"]
    wrong = {found["name"] for found in train["differences"] if found["value"] > train["tolerance"]}
    assert {name.split(".")[0] for name in wrong} == {"second", "relu"}, "the layers after it are not accused"
    assert all(check["passed"] for check in content["checks"][3:]), "the built-in models are right"


def test_a_layer_that_is_wrong_in_evaluation_alone(capsys: Shown):
    """R44."""
    assert check("wrong_in_eval") == 3
    output = capsys.readouterr().out
    assert (
        f"{HERE}:wrong_in_eval, train: O0 (float32), channels_last against O0 (float32), contiguous_format: ok"
        in output
    )
    assert (
        f"{HERE}:wrong_in_eval, eval: O0 (float32), channels_last against O0 (float32), contiguous_format: DIFF"
        in output
    )


@pytest.mark.parametrize("level", ["O0", "O2"])
def test_a_gradient_that_is_three_per_cent_off(level: str, capsys: Shown):
    """Found in half precision too, where two free steps of a deep model are further apart than that."""
    assert check("wrong_backward", "--opt-level", level) == 3
    assert "first output gradient of relu" in capsys.readouterr().out.splitlines()[-1]


def test_what_is_wrong_between_layers_is_the_next_one_s_input(capsys: Shown):
    assert check("between") == 3
    assert "first input of head, worst gradient of head.weight" in capsys.readouterr().out.splitlines()[-1]


def test_a_model_that_cannot_run_in_channels_last(capsys: Shown):
    assert check("views") == 3
    last = capsys.readouterr().out.splitlines()[-1]
    assert "fails in O0 (float32), channels_last: view size is not compatible" in last


def test_one_channel_input():
    assert check("good", "--in-channels", "1") == 0


def test_batch_norm_over_few_values_is_said(capsys: Shown):
    check("toy_models:tiny", "-b", "2", "--image-size", "2")
    assert (
        "see fewer than 16 values a channel, such as features.1 (2): rounding is magnified" in capsys.readouterr().out
    )


MISTAKES = [
    (["-a", "no_such_model"], "no architecture 'no_such_model'"),
    (["-a", "toy_models:tiny", "--opt-level", "O9"], "invalid choice"),
    (["-a", "toy_models:frozen"], "no parameter to train"),
    (["-a", "toy_models:tiny", "-b", "1"], "whole number from 2 on"),
    (["-a", "vgg11", "--image-size", "8"], "vgg11 cannot take a batch of (8, 3, 8, 8)"),
    (["-a", "toy_models:tiny", "--unknown"], "unrecognized"),
    (
        ["-a", f"{HERE}:needs_float32", "--opt-level", "O2"],
        "fails in O2 (bfloat16), contiguous_format: expected scalar",
    ),
]


@pytest.mark.parametrize(("argv", "sentence"), MISTAKES, ids=[" ".join(argv) for argv, _ in MISTAKES])
def test_a_mistake_is_one_sentence(argv: list[str], sentence: str, capsys: Shown):
    assert check_parity.main(["--device", "cpu", *argv]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1


def test_a_gradient_that_is_zero_but_for_rounding_is_measured_against_the_whole():
    whole, noise = torch.full((4,), 1.0), torch.full((4,), 1e-9)
    baseline = {"conv.weight": whole, "conv.bias": noise}
    found = parity_cases.compare_gradients({"conv.weight": whole, "conv.bias": -noise}, baseline)
    assert max(one.value for one in found) < 1e-4
    wrong = parity_cases.compare_gradients({"conv.weight": whole, "conv.bias": noise + 1e-3}, baseline)
    assert {one.name for one in wrong if one.value > 1e-4} == {"conv.bias"}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_number_that_is_not_finite_is_never_equal(bad: float):
    assert parity_layers.relative(torch.tensor([bad]), torch.tensor([bad])) == float("inf")
    assert parity_layers.relative(torch.tensor([1.0]), torch.tensor([bad])) == float("inf")


def test_another_first_convolution():
    model = parity_models.with_in_channels(good(4), 5)
    assert model.first.in_channels == 5
    assert model(torch.zeros(2, 5, 8, 8)).shape == (2, 4)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["resnet50", "mobilenet_v2", "densenet121", "squeezenet1_1", "efficientnet_b0"])
@pytest.mark.parametrize("level", ["O0", "O2"])
def test_architectures(arch: str, level: str):
    assert check_parity.main(["-a", arch, "--opt-level", level, "--device", "cpu"]) == 0


def test_a_gradient_that_is_all_rounding_is_measured_by_its_module():
    """The bias of a convolution before batch norm; a real difference of it is found all the same."""
    weight, bias = torch.full((100,), 0.01), torch.full((4,), 1e-7)
    baseline = {"a.weight": weight, "a.bias": bias, "b.weight": torch.ones(1)}

    def apart(bias: torch.Tensor) -> float:
        found = parity_cases.compare_gradients({**baseline, "a.bias": bias}, baseline)
        return {difference.name: difference.value for difference in found}["a.bias"]

    assert 0 < apart(-bias) < 5e-5
    assert apart(bias + 0.001) > 0.1
    assert apart(torch.full((4,), float("nan"))) == float("inf")

"""Dropouts whose mask follows the order of memory, and what a comparison of formats says of a model that has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from comparisons import TINY, content, fake_run
from torch import nn
from torchvision.ops import StochasticDepth

from trainer.dropout_order import drawing_modules, watch_dropout

import compare  # isort: skip
from ab.results import compare_results  # isort: skip

MODEL = "toy_models:dropping_pixels"
WORDS = "--rounds 2 --steps 3 --timing-warmup-steps 1 --no-plots --output-dir out".split()


def test_the_premise_the_mask_follows_the_order_of_memory():
    torch.manual_seed(0)
    one = nn.Dropout(0.5)(torch.ones(2, 4, 3, 3))
    torch.manual_seed(0)
    other = nn.Dropout(0.5)(torch.ones(2, 4, 3, 3).to(memory_format=torch.channels_last))
    assert not torch.equal(one, other)
    torch.manual_seed(0)
    by_channel = nn.Dropout2d(0.5)(torch.ones(2, 4, 3, 3))
    torch.manual_seed(0)
    assert torch.equal(by_channel, nn.Dropout2d(0.5)(torch.ones(2, 4, 3, 3).to(memory_format=torch.channels_last)))


@pytest.mark.parametrize(
    ("dropout", "shape", "found"),
    [
        (nn.Dropout(0.5), (2, 4, 3, 3), ["0"]),
        (nn.AlphaDropout(0.5), (2, 4, 3, 3), ["0"]),
        (nn.Dropout(0.0), (2, 4, 3, 3), []),
        (nn.Dropout(0.5).eval(), (2, 4, 3, 3), []),
        (nn.Dropout2d(0.5), (2, 4, 3, 3), []),
        (nn.Dropout(0.5), (2, 4, 1, 1), []),
        (nn.Dropout(0.5), (2, 1, 3, 3), []),
        (nn.Dropout(0.5), (2, 4), []),
    ],
)
def test_dropouts_with_an_order_are_named_once_and_the_hook_goes(dropout, shape, found):
    model = nn.Sequential(dropout)
    names = watch_dropout(model)
    for _ in range(2):
        model(torch.ones(shape))
    assert names == found
    assert not dropout._forward_pre_hooks


def test_losses_that_part_for_that_reason_are_not_called_different():
    one, other = fake_run("a", 0), fake_run("b", 0, losses=[7.0])
    one["resolved"]["channels_last"], other["resolved"]["channels_last"] = False, True
    assert compare_results([one], [other]).kind == "different"
    one["ordered_dropout"] = other["ordered_dropout"] = ["classifier.0"]
    found = compare_results([one], [other])
    assert found.kind == "not comparable"
    assert "classifier.0" in found.text
    assert "check_parity.py" in found.text
    other["resolved"]["channels_last"] = False
    assert compare_results([one], [other]).kind == "different"


@pytest.mark.parametrize(("key", "value"), [("compile", True), ("device", "cuda")])
def test_another_generator_draws_another_mask(key, value):
    one, other = fake_run("a", 0, drawing_modules=["drop"]), fake_run("b", 0, losses=[7.0], drawing_modules=[])
    other["resolved"] = {**one["resolved"], key: value}
    found = compare_results([one], [other])
    assert found.kind == "not comparable"
    assert "drop draws other random numbers" in found.text
    one["drawing_modules"] = []
    assert compare_results([one], [other]).kind == "different"


def test_what_draws_is_named():
    model = nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.0), nn.Dropout2d(0.1), StochasticDepth(0.1, "row"), nn.ReLU())
    assert drawing_modules(model) == ["0", "2", "3"]
    assert drawing_modules(model.eval()) == []


def test_a_comparison_of_such_a_model_ends_with_a_verdict_on_speed(start):
    assert compare.main([*WORDS, "--", *TINY, "-a", MODEL], start) == 0
    assert_not_comparable()


def test_so_does_one_in_a_single_process(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert compare.main([*WORDS, "--in-process", "--", *TINY, "-a", MODEL]) == 0
    assert_not_comparable()


def assert_not_comparable() -> None:
    (verdict,) = content()["verdicts"]
    assert verdict["results"]["kind"] == "not comparable"
    assert "dropout" in verdict["results"]["text"]


def test_the_step_times_of_a_run_name_them(run):
    assert run("-a", MODEL, "--synthetic-size", 16, "--step-times", "--output-dir", "one") == 0
    written = json.loads(Path("one/step_times.jsonl").read_text())
    assert (written["ordered_dropout"], written["drawing_modules"]) == (["0"], ["0"])

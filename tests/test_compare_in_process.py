"""compare.py --in-process: both models in one process, step by step in turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_models
from comparisons import TINY, content
from helpers import make_folder

import compare  # isort: skip
from ab import in_process  # isort: skip
from ab.arms import check_in_process, parse_arms  # isort: skip

QUICK = [
    "--in-process",
    "--rounds",
    "3",
    "--steps",
    "4",
    "--timing-warmup-steps",
    "2",
    "--no-plots",
    "--output-dir",
    "out",
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import torch

    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the model moves the time."""
    monkeypatch.setattr("trainer.timing.time", toy_models.MovedClock)


def measured(*words: str) -> dict[str, Any]:
    assert compare.main([*QUICK, *words]) == 0
    return content()


def test_steps_alternate_warm_up_is_dropped_and_results_are_compared(monkeypatch):
    turns: list[tuple[str, int, int]] = []
    real = in_process.ArmInProcess.step

    def noted(self: Any, number: int, shared: Any) -> None:
        turns.append((self.name, number, id(shared)))
        real(self, number, shared)

    monkeypatch.setattr(in_process.ArmInProcess, "step", noted)
    record = measured("--", *TINY)
    names = "".join("ab"[name == "channels_last"] for name, _, _ in turns)
    assert names == "abbabaababbabaababbabaababba"  # two warm-up steps, then three rounds of four
    assert all(one[1:] == other[1:] for one, other in zip(turns[::2], turns[1::2], strict=True))  # the same batches
    assert [len(run["epochs"][0]["seconds"]) for run in record["runs"]] == [4] * 6
    assert record["verdicts"][0]["results"]["kind"] == "equal"
    assert len(record["runs"][0]["losses"]) == 5
    assert record["settings"]["in_process"]


def test_the_losses_are_those_of_a_run_of_its_own(run):
    """Same weights, batches, learning rates and dropout as train.py, bit for bit."""
    flags = [*TINY, "-a", "toy_models:dropping"]
    record = measured("--", *flags)
    assert run(*flags, "--stop-after-steps", 5, "--step-times", "true", "--output-dir", "alone", base=None) == 0
    alone = json.loads(Path("alone/step_times.jsonl").read_text())["losses"]
    assert record["runs"][0]["losses"] == alone


def test_a_tenth_more_time_a_step_is_slower(clock):
    arms = ["--arm", "plain: -a toy_models:on_the_clock", "--arm", "tenth: -a toy_models:slower_on_the_clock"]
    (found,) = measured(*arms, "--", *TINY)["verdicts"]
    assert found["kind"] == "slower"
    assert 1 / found["ratio"]["high"] <= 1.10 <= 1 / found["ratio"]["low"]


def test_inference_times_forward_passes_in_eval_mode(clock, monkeypatch):
    """The clock moves by 0.3 in a pass of evaluation, by 0.1 in one of training."""

    class Both(toy_models.OnTheClock):
        def forward(self, images: Any) -> Any:
            if not self.training:
                toy_models.MovedClock.now += 0.3
            return super().forward(images)

    monkeypatch.setattr(toy_models, "on_the_clock", lambda num_classes: Both(num_classes, 0.1))
    record = measured("--mode", "inference", "--", *TINY, "-a", "toy_models:on_the_clock")
    assert {round(second, 6) for run in record["runs"] for second in run["epochs"][0]["seconds"]} == {0.3}
    assert record["verdicts"][0]["results"]["kind"] == "equal"


@pytest.mark.parametrize("mode", ["train", "inference"])
def test_a_wrong_op_is_different_results_and_exit_3(mode, capsys):
    flags = [*TINY, "-a", "toy_models:wrong_in_channels_last"]
    assert compare.main([*QUICK, "--mode", mode, "--", *flags]) == 3
    assert "different results" in capsys.readouterr().out.splitlines()[-1]


def test_it_is_labelled_everywhere(clock, capsys):
    record = measured("--", *TINY, "-a", "toy_models:on_the_clock")
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("in process: a quick look")
    assert record["settings"]["in_process"] is True
    for name in ("report.md", "report.html"):
        text = Path("out", name).read_text()
        assert "In one process: a quick look." in text
        assert "one process: 3 rounds of 4 training steps" in text
        assert "over rounds is above 10 %" in text


def test_half_of_a_folder_in_three_arms(clock):
    images = str(make_folder(Path("images"), train=20, val=4))
    arms = ["--arm", "one:", "--arm", "two: --opt-level O2", "--arm", "three: --opt-level O2 --channels-last true"]
    flags = "-a toy_models:on_the_clock --b 8 --image-size 32 --workers 0 --opt-level O0 --cpu-heap default".split()
    record = measured(*arms, "--", *flags, images)
    assert [verdict["results"]["kind"] for verdict in record["verdicts"]] == ["equal", "equal"]
    assert [run["resolved"]["opt_level"] for run in record["runs"][:3]] == ["O0", "O2", "O2"]


@pytest.mark.parametrize(
    ("flag", "part"),
    [
        ("--cpu-heap retain", "--cpu-heap"),
        ("--workers 2", "--workers"),
        ("--compile", "--compile"),
        ("--batch-size 4", "--batch-size"),
        ("--device cpu", "--device"),
    ],
)
def test_what_a_process_has_once_cannot_differ(flag, part, capsys):
    assert compare.main([*QUICK, "--arm", "one:", "--arm", f"two: {flag}", "--", *TINY]) == 2
    error = capsys.readouterr().err
    assert f"they cannot differ in {part}" in error
    assert len(error.splitlines()) == 1


def test_an_arch_that_brings_another_image_size_is_refused(capsys):
    arms = ["--arm", "one: -a resnet18", "--arm", "two: -a inception_v3"]
    flags = "--b 2 --synthetic-size 8 --num-classes 4 --opt-level O0 --cpu-heap default".split()
    assert compare.main([*QUICK, *arms, "--", *flags]) == 2
    assert "differ in --image-size" in capsys.readouterr().err


def test_other_mistakes_are_one_sentence(capsys):
    for words, part in [
        (["--mode", "inference", "--", *TINY], "--mode inference needs --in-process"),
        (["--in-process", "--epochs", "1", "--", *TINY], "drop --epochs"),
        (["--in-process", "--nproc-per-node", "2", "--", *TINY], "drop --nproc-per-node"),
        (
            [*QUICK, "--arm", "a:", "--arm", "b: --channels-last auto", "--", *TINY],
            "--channels-last auto needs a run of its own",
        ),
    ]:
        assert compare.main(words) == 2
        error = capsys.readouterr().err
        assert part in error
        assert len(error.splitlines()) == 1


def test_a_model_that_breaks_is_exit_1_with_its_reason(capsys):
    arms = ["--arm", "fine:", "--arm", "bad: -a toy_models:broken"]
    assert compare.main([*QUICK, *arms, "--", *TINY]) == 1
    assert "arm bad ended with exit code 1" in capsys.readouterr().out
    assert content()["failure"]["last_lines"][-1] == "RuntimeError: this model is broken"


def test_a_non_finite_step_names_its_arm():
    arms = ["--arm", "fine:", "--arm", "bad: -a toy_models:nan_third"]
    assert compare.main([*QUICK, *arms, "--", *TINY]) == 1
    assert (content()["failure"]["arm"], content()["failure"]["exit_code"]) == ("bad", 3)


def test_too_long_is_refused_before_the_first_round(clock, capsys):
    words = [*QUICK, "--max-minutes", "0.001", "--", *TINY, "-a", "toy_models:on_the_clock"]
    assert compare.main(words) == 2
    assert "above --max-minutes" in capsys.readouterr().err
    assert not Path("out/comparison.json").exists()


def test_an_interrupt_keeps_the_rounds_that_ended_and_a_resume_adds_the_rest(monkeypatch, capsys):
    real, after = in_process.ArmInProcess.step, 8

    def step(self: Any, number: int, shared: Any) -> None:
        if number == after:
            raise KeyboardInterrupt
        real(self, number, shared)

    with monkeypatch.context() as patch:
        patch.setattr(in_process.ArmInProcess, "step", step)
        assert compare.main([*QUICK, "--", *TINY]) == 130
    record = content()
    assert (record["state"], {run["round"] for run in record["runs"]}) == ("interrupted", {0})
    assert "--resume out" in capsys.readouterr().err
    assert compare.main(["--resume", "out", "--no-plots"]) == 0
    record = content()
    assert [run["round"] for run in record["runs"]] == [0, 0, 1, 1, 2, 2]
    assert record["verdicts"][0]["results"]["kind"] == "equal"


def test_the_default_arms_may_share_a_process():
    check_in_process(parse_arms({"a": "--channels-last false", "b": "--channels-last true --opt-level O2"}, []))

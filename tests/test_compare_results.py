"""What compare.py says of measured runs: whether results agree, and the verdict on speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from comparisons import TINY, content, fake_run, judged, rounds_of

import compare  # isort: skip
from ab.arms import changes_mathematics  # isort: skip
from ab.report import final_lines  # isort: skip
from ab.results import compare_results  # isort: skip
from trainer.config import MATCH_IGNORES  # isort: skip


def test_what_changes_the_mathematics():
    base = {"batch_size": 8, "channels_last": False, "sync_bn": False, "workers": 1}
    assert changes_mathematics(base, {**base, "channels_last": True, "workers": 2}) == []
    assert changes_mathematics(base, {**base, "batch_size": 16}) == ["batch_size"]
    assert changes_mathematics(base, {**base, "sync_bn": True}) == []
    assert changes_mathematics(base, {**base, "sync_bn": True}, processes=2) == ["sync_bn"]
    for key in MATCH_IGNORES:
        assert changes_mathematics({**base, key: 1}, {**base, key: 2}) == []


@pytest.mark.parametrize(
    ("level", "losses", "skipped", "kind"),
    [
        ("O0", [1.0, 1.0], 0, "equal"),
        ("O0", [1.00005, 1.0005], 0, "equal"),
        ("O0", [1.0003, 1.0], 0, "different"),
        ("O0", [1.0, 1.003], 0, "different"),
        ("O2", [1.01, 1.1], 0, "equal"),
        ("O2", [1.03, 1.0], 0, "different"),
        ("O2", [1.0, 9.0], 2, "not comparable"),
        ("O2", [1.03, 1.0], 2, "different"),
        ("O0", [None, 1.0], 0, "different"),
    ],
)
def test_losses_against_the_tolerance_of_the_coarser_arm(level, losses, skipped, kind):
    one = fake_run("a", 0, losses=[1.0, 1.0])
    other = fake_run("b", 0, losses=losses, skipped_steps=skipped)
    other["resolved"]["opt_level"] = level
    assert compare_results([one], [other]).kind == kind


def test_another_batch_size_is_not_applicable_and_never_exit_3():
    one, other = fake_run("a", 0), fake_run("b", 0, losses=[7.0])
    one["resolved"]["batch_size"], other["resolved"]["batch_size"] = 8, 16
    assert compare_results([one], [other]).kind == "not applicable"


@pytest.mark.parametrize(
    ("second", "kind", "part"),
    [
        ([0.08, 0.081, 0.0805, 0.08], "faster", "faster than a by 1.2"),
        ([0.11, 0.1101, 0.1099, 0.11], "slower", "slower than a by 1.100 x"),
        ([0.1, 0.101, 0.099, 0.1], "no difference", "would have been found 4 times in 5"),
        ([0.08, 0.12, 0.07, 0.15], "unstable", "run more rounds"),
        ([0.08], "unstable", "single round"),
        # As scattered as above, but rounds enough to be sure.
        ([0.045, 0.055] * 30, "faster", "faster than a by 2.0"),
        ([0.045, 0.06] * 2, "unstable", "varies by 16.6 % from round to round (above 10 %) and lies anywhere from"),
    ],
)
def test_verdicts(second, kind, part):
    found = judged(rounds_of(second))
    assert found.kind == kind
    assert part in found.sentence


def test_the_first_line_of_several_kinds_is_the_one_that_matters_most():
    slow_data = rounds_of([0.05, 0.05, 0.05])
    for run in slow_data:
        run["epochs"][0]["data_wait"] = [0.4 * second for second in run["epochs"][0]["seconds"]]
    assert judged(slow_data).kind == "input-bound"
    for run in slow_data:
        run["losses"] = [1.0] if run["arm"] == "a" else [2.0]
    assert judged(slow_data).kind == "different results"


def test_a_later_step_apart_names_rounding_as_a_possible_cause():
    first, other = fake_run("a", 0, losses=[7.150648, 6.940104]), fake_run("b", 0, losses=[7.150662, 6.9551])
    found = compare_results([first], [other])
    assert found.kind == "different"
    assert "the first step agrees, so rounding that grows at this learning rate may be the cause" in found.text
    assert "repeat with a smaller --lr to tell" in found.text
    at_once = compare_results([first], [fake_run("b", 0, losses=[7.3, 6.94])])
    assert at_once.kind == "different"
    assert "rounding" not in at_once.text
    passes = compare_results([first], [other], training=False)  # nothing is learned between passes
    assert "rounding" not in passes.text


def test_what_differs_is_named_in_proper_english():
    one, other = fake_run("a", 0), fake_run("b", 0)
    other["resolved"]["lr"] = 3
    assert "not applicable: lr differs, so" in compare_results([one], [other]).text
    other["resolved"]["seed"] = 1
    assert "not applicable: lr, seed differ, so" in compare_results([one], [other]).text


def final(acc1: float | None, images: int = 100, **changes: Any) -> dict[str, Any]:
    return {"train_loss": 1.0, "val_loss": 2.0, "val_acc1": acc1, "val_images": images, **changes}


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (final(91.0), final(1.0), "different"),
        (final(91.0), final(91.0), "equal"),
        # Of 100 images at about 80 %, two samples are at most 20 points apart in 99.9 % of all cases.
        (final(90.0), final(74.0), "equal"),
        (final(90.0), final(69.0), "different"),
        (final(90.0, 10_000), final(88.0, 10_000), "different"),
        (final(90.0, 10_000), final(89.0, 10_000), "equal"),
        (final(100.0, 4), final(0.0, 4), "equal"),  # four images tell nothing
        (final(0.0), final(0.0), "equal"),
        (final(50.0, train_loss=1.0), final(50.0, train_loss=9.0), "equal"),
        (final(50.0), final(50.0, train_loss=None), "different"),
        (final(50.0), final(50.0, val_loss=None), "different"),
        (final(50.0, train_loss=None), final(50.0, train_loss=None), "not comparable"),
        (final(50.0), {"train_loss": 1.0, "val_loss": 2.0, "val_acc1": 1.0}, "equal"),  # a record without their number
    ],
)
def test_the_end_of_whole_epochs_is_compared_too(first, second, kind):
    one, other = fake_run("a", 0, final=first), fake_run("b", 0, final=second)
    assert compare_results([one], [other]).kind == kind


def test_the_end_of_whole_epochs_is_told():
    one, other = fake_run("a", 0, final=final(90.0)), fake_run("b", 0, final=final(87.0, train_loss=1.1))
    text = compare_results([one], [other]).text
    assert "accuracy of 100 validation images 90.00 % and 87.00 %" in text
    assert "final training loss 1.0000 and 1.1000 (0.091 apart, relative)" in text
    assert "final validation loss 2.0000 and 2.0000 (0 apart, relative)" in text
    worse = compare_results([one], [fake_run("b", 0, final=final(9.0))]).text
    assert "accuracy of 100 validation images is 90.00 % and 9.00 %" in worse
    assert "99.9 %" in worse
    assert "the first step agrees" in worse


def test_accuracies_that_part_are_different_over_skipped_steps_too():
    one = fake_run("a", 0, final=final(91.0), skipped_steps=1)
    assert compare_results([one], [fake_run("b", 0, final=final(1.0))]).kind == "different"
    assert compare_results([one], [fake_run("b", 0, final=final(91.0))]).kind == "not comparable"


def test_the_average_and_the_raw_weights_may_score_apart():
    ends = {"train_loss": 1.0, "val_loss": 1.0, "val_acc1": 90.0, "val_images": 500}
    one, other = fake_run("a", 0, final=ends), fake_run("b", 0, final={**ends, "val_acc1": 10.0})
    assert compare_results([one], [other]).kind == "different"
    other["resolved"]["ema_eval"] = True
    assert compare_results([one], [other]).kind == "equal"
    other["losses"] = [1.5, 0.9]
    assert compare_results([one], [other]).kind == "different"


def test_other_mathematics_have_other_ends():
    one, other = fake_run("a", 0, final=final(91.0)), fake_run("b", 0, final=final(1.0))
    other["resolved"]["lr"] = 3
    assert compare_results([one], [other]).kind == "not applicable"


def test_final_lines_say_what_is_missing_instead_of_zero():
    runs = [fake_run("a", 0, final=final(90.0)), fake_run("a", 1, final=final(None, train_loss=None)),
            fake_run("b", 0, final=final(None)), fake_run("b", 1, final=final(None))]  # fmt: skip
    first, second = final_lines({"arms": [{"name": "a"}, {"name": "b"}], "runs": runs})
    assert first.startswith("a: train_loss 1.0000 (not finite in 1 of 2 rounds), val_loss 2.0000, val_acc1 90.0000 (")
    assert "val_acc1 not finite" in second
    assert " 0.0000" not in first + second


def test_an_interval_too_wide_to_say_anything_is_unstable():
    """Two rounds: their ratios are 6 % apart, their interval reaches from half to twice."""
    found = judged(rounds_of([0.1, 0.106]))
    assert found.ratio.spread < 0.10
    assert found.ratio.high > 1.25
    assert found.kind == "unstable"
    assert "25 %" in found.sentence
    assert "run more rounds than 2" in found.sentence


def test_the_audit_changes_no_mathematics():
    base = {"channels_last": False, "audit_layout": None}
    assert changes_mathematics(base, {**base, "audit_layout": True}) == []


def test_whole_epochs_in_a_comparison_of_real_runs(start):
    quick = ["--epochs", "1", "--rounds", "1", "--timing-warmup-steps", "1", "--no-plots", "--output-dir", "out"]
    assert compare.main([*quick, "--", *TINY, "--synthetic-size", "80", "--lr", "0.0001"], start) == 0
    record = content()
    assert record["verdicts"][0]["results"]["kind"] == "equal"
    images = record["runs"][0]["final"]["val_images"]
    assert images >= 4
    assert f"accuracy of {images} validation images" in record["verdicts"][0]["results"]["text"]
    assert "val_images" not in Path("out/report.md").read_text()

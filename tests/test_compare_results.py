"""What compare.py says of measured runs: whether results agree, and the verdict on speed."""

from __future__ import annotations

import pytest
from comparisons import fake_run, judged, rounds_of

from ab.arms import changes_mathematics  # isort: skip
from ab.results import compare_results  # isort: skip


def test_what_changes_the_mathematics():
    base = {"batch_size": 8, "channels_last": False, "sync_bn": False, "workers": 1}
    assert changes_mathematics(base, {**base, "channels_last": True, "workers": 2}) == []
    assert changes_mathematics(base, {**base, "batch_size": 16}) == ["batch_size"]
    assert changes_mathematics(base, {**base, "sync_bn": True}) == []
    assert changes_mathematics(base, {**base, "sync_bn": True}, processes=2) == ["sync_bn"]


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

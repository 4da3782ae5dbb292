"""The report of compare.py states what was timed, not what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from comparisons import TINY, content, fake_run

import compare  # isort: skip
from ab.tally import few_steps, told_steps  # isort: skip

ASKED = {"rounds": 5, "steps": 20, "timing_warmup_steps": 5, "epochs": None, "in_process": False, "mode": "train"}


def record(runs: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {"arms": [{"name": "a"}, {"name": "b"}], "runs": runs, "settings": {**ASKED, **changes}}


def run_of(arm: str, index: int, timed: int, left_out: int, epochs: int = 1) -> dict[str, Any]:
    found = fake_run(arm, index, [0.1] * (timed + left_out))
    found["epochs"] = [{**found["epochs"][0], "warmup_steps": left_out}] * epochs
    return found


def test_an_epoch_of_four_steps_is_told_as_three_after_one(start, capsys):
    flags = [*TINY, "--synthetic-size", "32"]
    assert compare.main(["--rounds", "2", "--no-plots", "--output-dir", "out", "--", *flags], start) == 0
    note = "each run timed only 3 steps where 20 were asked for"
    out = capsys.readouterr().out.splitlines()
    (line,) = [line for line in out if note in line]
    assert out.index(line) < next(place for place, text in enumerate(out) if " 1/2" in text)  # while it can be stopped
    for name in ("report.md", "report.html"):
        text = Path("out", name).read_text()
        assert "3 timed steps each after 1 left out" in text
        assert note in text
        assert "20 timed steps" not in text
    assert len(content()["runs"]) == 4


@pytest.mark.parametrize(
    ("runs", "changes", "told"),
    [
        ([], {}, "no round has ended of 5"),
        ([(0, 20, 5)], {}, "1 of 5 rounds of fresh processes in alternating order, 20 timed steps each after 5 left out"),
        ([(0, 3, 1)], {"rounds": 1}, "1 round of fresh processes in alternating order, 3 timed steps each after 1 left out"),
        ([(0, 3, 1), (1, 4, 1)], {"rounds": 2}, "2 rounds of fresh processes in alternating order, 3 to 4 timed steps each"),
    ],
)  # fmt: skip
def test_what_was_timed_is_told(runs, changes, told):
    both = [run_of(arm, *run) for run in runs for arm in "ab"]
    assert told_steps(record(both, **changes)).startswith(told)


def test_whole_epochs_are_told_as_such():
    runs = [run_of(arm, 0, 3, 1, epochs=2) for arm in "ab"]
    told = told_steps(record(runs, rounds=1, epochs=2))
    assert (
        told == "1 round of fresh processes in alternating order, whole epochs (2), 6 timed steps each after 2 left out"
    )
    assert few_steps(record(runs, rounds=1, epochs=2)) is None


def test_enough_steps_need_no_note():
    assert few_steps(record([])) is None
    assert few_steps(record([run_of("a", 0, 20, 5)])) is None
    # The last batch of an epoch may be smaller than the others and is no step to time: one in twenty is no matter.
    assert few_steps(record([run_of("a", 0, 19, 5)])) is None
    assert "only 12" in str(few_steps(record([run_of("a", 0, 12, 5)])))
    assert "left out only 1 step where --timing-warmup-steps 5" in str(few_steps(record([run_of("a", 0, 24, 1)])))


def test_one_process_tells_its_rounds_too():
    runs = [run_of(arm, 0, 20, 0) for arm in "ab"]
    told = told_steps(record(runs, in_process=True))
    assert told.startswith("one process: 1 of 5 rounds of 20 training steps of each arm")
    assert told.endswith("after 5 left out")

"""The line about an input that is too slow, on a clock that only the data set and the model move."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import make_folder

from data.dataset import ImageDataset
from trainer.progress import input_bound
from trainer.timing import Clock


def record(share: float, steps: int = 20) -> dict[str, Any]:
    return {"epoch": 3, "data_wait_share": 0.0, "data_wait_share_by_rank": [0.0, share], "steady_steps": steps}


def test_the_line_names_the_share_and_what_to_try() -> None:
    line = input_bound(record(0.42), workers=2, cores=8)
    assert line is not None
    assert line.startswith("input-bound: 42.0 % of epoch 3 ")
    assert "-j is 2, this process has 8 cores" in line
    assert "larger batches" in line
    assert "scripts/prepare_folder.py" in line


def test_more_workers_than_cores_are_not_proposed() -> None:
    line = input_bound(record(0.42), workers=8, cores=8)
    assert line is not None
    assert "workers" not in line
    assert "scripts/prepare_folder.py" in line


@pytest.mark.parametrize(
    ("share", "steps", "said"), [(0.3, 20, False), (0.31, 20, True), (1.0, 4, False), (1.0, 5, True)]
)
def test_when_it_is_said(share: float, steps: int, said: bool) -> None:
    assert (input_bound(record(share, steps), 1, 2) is not None) is said


class SlowClock:
    """Seconds that pass when something is said to take some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(Clock, "mark", lambda clock: self.now)

    def around(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, seconds: float) -> None:
        original = getattr(owner, name)

        def slow(*arguments: Any) -> Any:
            self.now += seconds
            return original(*arguments)

        monkeypatch.setattr(owner, name, slow)


@pytest.mark.parametrize(("loading", "said"), [(0.5, True), (0.01, False)])
def test_a_sleeping_data_set_shows_the_line_and_a_fast_one_does_not(
    run, capsys, tmp_path, monkeypatch: pytest.MonkeyPatch, loading: float, said: bool
) -> None:
    """R91."""
    from toy_models import Tiny

    clock = SlowClock(monkeypatch)
    clock.around(monkeypatch, ImageDataset, "__getitems__", loading)
    clock.around(monkeypatch, Tiny, "forward", 0.5)
    make_folder(tmp_path / "set", train=16, val=2)
    flags = "set -a toy_models:tiny -b 4 --image-size 32 --epochs 1 -j 0 --timing-warmup-steps 1 --tensorboard false"
    assert run(*flags.split(), base="") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: input-bound: ")]
    assert len(lines) == said
    assert all(" 50.0 % of epoch 0 " in line for line in lines)


def test_made_up_images_are_never_called_slow(run, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    from data.synthetic import SyntheticImages

    clock = SlowClock(monkeypatch)
    clock.around(monkeypatch, SyntheticImages, "batch", 5.0)
    assert run("--synthetic-size", 80, "--timing-warmup-steps", 1) == 0
    assert "input-bound" not in capsys.readouterr().out

"""The code of docs/scale_out.md that mirrors a run's TensorBoard files, with stand-ins for the trackers."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import rows

PAGE = Path(__file__).parent.parent / "docs/scale_out.md"
SMALL = "-a toy_models:tiny --b 8 --synthetic-size 32 --image-size 32 --num-classes 4 -p 2 --epochs 2 --output-dir run"


class Tracker:
    """Takes the calls of wandb and of mlflow; a run of either is the tracker itself."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []
        self.began: dict[str, Any] = {}
        self.params: dict[str, Any] = {}
        self.artifacts: tuple[str, ...] = ()

    def init(self, **settings: Any) -> Tracker:
        self.began = settings
        return self

    start_run = init

    def log(self, values: dict[str, float], step: int) -> None:
        self.points.append((step, values))

    log_metrics = log

    def log_params(self, params: dict[str, Any]) -> None:
        self.params = params

    def log_artifacts(self, *where: str) -> None:
        self.artifacts = where

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def code() -> SimpleNamespace:
    """What the page's python blocks define."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "scale_out"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    return SimpleNamespace(**names)


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Tracker:
    stand_in = Tracker()
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, stand_in)  # type: ignore[arg-type]
    return stand_in


@pytest.mark.parametrize("name", ["to_wandb", "to_mlflow"])
def test_a_tracker_gets_every_scalar_once_with_rising_steps(run, code, tracker, name: str) -> None:
    assert run(*SMALL.split(), base=None) == 0
    getattr(code, name)(Path("run"))
    steps = [step for step, _ in tracker.points]
    assert steps == sorted(set(steps))
    losses = {step: values["train/loss"] for step, values in tracker.points if "train/loss" in values}
    assert losses == pytest.approx({row["step"]: row["loss"] for row in rows("run")})
    settings = tracker.began.get("config") or tracker.params
    assert (settings["arch"], settings["epochs"]) == ("toy_models:tiny", 2)
    assert tracker.artifacts == (() if name == "to_wandb" else ("run", "run"))


def test_only_the_first_rank_opens_a_run_to_watch(code, tracker, monkeypatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setitem(sys.modules, "train", SimpleNamespace(main=lambda words: given.append(words) or 0))  # type: ignore[arg-type]
    for rank, began in (("1", {}), ("0", {"project": "imagenet", "sync_tensorboard": True})):
        monkeypatch.setenv("RANK", rank)
        assert code.train_with_wandb(["-b", "8"]) == 0
        assert tracker.began == began
    assert given == [["-b", "8"]] * 2

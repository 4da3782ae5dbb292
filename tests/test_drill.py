"""scripts/drill.py: short drills, and the faults that it must see."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "scripts")) if path not in sys.path]

import drill  # noqa: E402
import drill_process  # noqa: E402
import drill_round  # noqa: E402

CALM = [(0, ["a", "b"]), (0, ["c"]), (1, ["c", "a"]), (1, ["b"])]
TOY = ["--", "-a", "toy_models:dropping", "--synthetic-size", "90"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills", "ranks"), [("SIGKILL", 3, 1), ("SIGKILL", 2, 2), ("SIGTERM", 1, 1)])
def test_a_run_outlives_what_disturbs_it(tmp_path, capsys, monkeypatch, kind, kills, ranks):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    flags = ["--kills", kills, "--nproc-per-node", ranks, "--signal", kind, "--out", tmp_path / "runs"]
    # The toy is through before a SIGTERM reaches it.
    code = drill.main([*map(str, flags), "--json", str(tmp_path / "drill.json"), *(TOY if kind == "SIGKILL" else [])])
    out = capsys.readouterr().out
    assert code == 0, out
    assert f"{kills} x {kind} survived" in out
    assert "bytes lost 0" in out
    assert "0 images lost, 0 repeated" in out
    found = json.loads((tmp_path / "drill.json").read_text())
    assert (sum(found["kills"].values()), found["faults"]) == (kills, [])
    assert len(found["seconds"]) == (kills if kind == "SIGTERM" else 0)


def test_each_image_once_an_epoch():
    assert drill_round.image_faults(list(CALM), CALM) == []


@pytest.mark.parametrize(
    ("history", "fault"),
    [
        ([*CALM[:2], CALM[1], *CALM[2:]], "epoch 0: 0 images lost, 1 repeated"),
        ([CALM[0], *CALM[2:]], "epoch 0: 1 images lost, 0 repeated"),
        ([*CALM[:3], (1, ["a"])], "epoch 1: 1 images lost, 1 repeated"),
        ([CALM[1], CALM[0], *CALM[2:]], "the images of a step are not those of the undisturbed run"),
    ],
)
def test_a_wrong_history_is_seen(history, fault):
    assert fault in drill_round.image_faults(history, CALM)


def test_an_undisturbed_run_that_repeats_an_image_is_no_measure():
    twice = [*CALM[:2], (0, ["a"])]
    assert drill_round.image_faults(twice, twice) == ["epoch 0: 0 images lost, 1 repeated"]


@pytest.mark.parametrize("key", ["state_dict", "optimizer"])
def test_weights_and_optimizer_state_are_compared_bitwise(key):
    def content(value: float) -> dict:
        state = {"state_dict": {"w": torch.ones(2)}, "optimizer": {0: {"momentum_buffer": torch.ones(2)}}}
        return {"step": 3, "epoch": 1, **state, key: {0: {"x": torch.tensor([value])}}}

    assert drill_round.same(content(0.0), content(0.0))
    assert not drill_round.same(content(0.0), content(-0.0))


class Over:
    """A start that has ended after ``steps``."""

    def __init__(self, steps: list[tuple[int, list[str]]]) -> None:
        self._steps = steps

    def fed(self) -> list[tuple[int, list[str]]]:
        return self._steps


def test_steps_behind_the_checkpoint_are_struck_out_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(drill_round, "Start", lambda *_: None)
    outcome = drill_round.Outcome()
    a_round = drill_round.Round(tmp_path / "round", 1, [], outcome)
    a_round.start()
    monkeypatch.setattr(a_round, "end", lambda: {"step": 1})
    a_round.ended(Over(CALM[:3]))
    a_round.start()
    a_round.ended(Over(CALM[1:]))
    assert (a_round.history, outcome.steps_redone, outcome.faults) == (CALM, 2, [])
    monkeypatch.setattr(a_round, "end", lambda: None)
    a_round.ended(Over([]))
    assert outcome.faults == ["round: step 1 was saved, now the newest is 0"]


def test_bytes_of_a_damaged_checkpoint_are_lost(tmp_path):
    outcome = drill_round.Outcome()
    a_round = drill_round.Round(tmp_path / "round", 1, [], outcome)
    torn = tmp_path / "round/runs/one/checkpoints/last.pt"
    torn.parent.mkdir(parents=True)
    torn.write_bytes(b"half")
    a_round.ended(Over([]))
    assert outcome.bytes_lost == 4


@pytest.mark.parametrize("flags", [["--kills", "0"], ["--nproc-per-node", "0"], ["--out", "."]])
def test_what_cannot_be_asked(flags, capsys):
    assert drill.main(flags) == 2
    assert capsys.readouterr().err.startswith("drill: --")


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_kill_ends_every_process_of_a_start(tmp_path, monkeypatch):
    """The child leads a session of its own, as torchrun's workers do."""
    (tmp_path / "parent.py").write_text(PARENT)
    monkeypatch.setattr(drill_process, "WORKER", tmp_path / "parent.py")
    start = drill_process.Start(tmp_path, 1, 1, [])
    while not start.log_tail().endswith("\n"):
        assert start.wait(0.05) is None
    child = int(start.log_tail())
    start.kill()
    assert start.wait() == -signal.SIGKILL
    stat = Path(f"/proc/{child}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

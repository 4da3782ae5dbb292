"""Ranks decide the same at the same boundary, whatever each of them asks for and however much it has to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import torchrun

from trainer.agreement import Agreement, Decision
from trainer.distributed import Group, Ranks

WORKER = Path(__file__).parent / "agreement_worker.py"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What both ranks of tests/agreement_worker.py found."""
    folder = tmp_path_factory.mktemp("ranks")
    done = torchrun(folder, 2, WORKER, folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "terminate called" not in done.stderr
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


def test_all_ranks_decide_alike(ranks):
    assert ranks[0] == ranks[1]


def test_a_stop_reaches_every_rank_at_the_next_boundary_and_the_heavier_reason_wins(ranks):
    assert [decision["stop"] for decision in ranks[0]["stops"]] == [0, 0, 0, 4]


def test_only_rank_0s_clock_saves(ranks):
    assert [at for at, decision in enumerate(ranks[0]["saves"]) if decision["save"]] == [2]


def test_one_due_save_is_made_once(ranks):
    assert [at for at, decision in enumerate(ranks[0]["clock"]) if decision["save"]] == [2]


def test_ranks_with_less_to_do_wait_for_the_others(ranks):
    """As in validation, where the number of batches differs: the last boundary of work is number 4."""
    assert [decision["busy"] for decision in ranks[0]["unequal"]] == [True] * 6 + [False]
    assert [decision["busy"] for decision in ranks[0]["none at all"]] == [True] * 2 + [False]
    assert [decision["stop"] for decision in ranks[0]["late stop"]] == [0] * 5 + [2]


def test_one_process_decides_at_once_and_without_a_group():
    agreement = Agreement(Group(Ranks(), torch.device("cpu")))
    assert agreement.boundary(3, save=True, busy=False) == Decision(3, True, False)
    assert agreement.boundary(0, save=False) == Decision()

"""What test_agreement.py starts on two ranks; findings to a file.

torchrun --nproc-per-node 2 tests/agreement_worker.py FOLDER
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from trainer.agreement import Agreement
from trainer.distributed import Group, read_ranks


def told(agreement: Agreement, boundaries: int, stop: dict[int, int], save: dict[int, bool]) -> list[dict[str, Any]]:
    """The decisions of ``boundaries`` boundaries of work and then idle ones, until a stop or until
    nobody is busy. ``stop`` and ``save``: what this rank asks for at which boundary."""
    found: list[dict[str, Any]] = []
    while True:
        at = len(found)
        decision = agreement.boundary(stop.get(at, 0), save.get(at, False), busy=at < boundaries)
        found.append(dataclasses.asdict(decision))
        if decision.stop or not decision.busy:
            return found


def main() -> None:
    group = Group(read_ranks(), torch.device("cpu"), timeout_s=60)
    agreement, rank = Agreement(group), group.ranks.rank
    found = {
        "clock": told(agreement, 5, {}, {1: True, 2: True}),  # due until the save is made, at boundary 2
        "stops": told(agreement, 10, {2: 1} if rank == 0 else {2: 4}, {}),
        "saves": told(agreement, 5, {}, {1: True} if rank == 0 else {3: True}),
        "unequal": told(agreement, 2 if rank == 0 else 5, {}, {}),
        "none at all": told(agreement, 0 if rank == 0 else 1, {}, {}),
        "late stop": told(agreement, 2 if rank == 0 else 5, {} if rank == 0 else {4: 2}, {}),
    }
    Path(sys.argv[1], f"rank{rank}.json").write_text(json.dumps(found))
    agreement.boundary(0, save=False)  # still under way when the group goes
    group.close(agreed=True)


if __name__ == "__main__":
    main()

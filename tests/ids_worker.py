"""train.py with a record of which sample each rank trained on: ids_rank*.jsonl, a line a batch of (epoch, index).

torchrun tests/ids_worker.py FLAGS
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import train


class Recorded:
    """A training loader that writes down the samples of the batches it hands out."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.sampler = loader.sampler

    @property
    def steps_in_epoch(self) -> int:
        return self._loader.steps_in_epoch

    def epoch(self, epoch: int, consumed: int = 0) -> tuple[Any, Iterator[Any]]:
        plans, batches = self._loader.epoch(epoch, consumed)
        return plans, self._noted(batches)

    def _noted(self, batches: Iterator[Any]) -> Iterator[Any]:
        with open(f"ids_rank{os.environ.get('RANK', 0)}.jsonl", "a") as file:
            for keys, batch in zip(list(self.sampler), batches, strict=False):
                file.write(json.dumps(keys) + "\n")
                file.flush()
                yield batch


if __name__ == "__main__":
    sys.exit(train.main(loader_wrapper=Recorded))

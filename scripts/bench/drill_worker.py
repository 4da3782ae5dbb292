"""train.py with a record of the images that it really trained on, for ``scripts/drill.py``.

Each rank appends a line a batch to ``$DRILL_RECORD.rank<R>.jsonl``, before the loop gets the batch: a digest of the pixels
of every image as it is handed to the model. Nothing is asked of the sampler, so a wrong order, position or share shows.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import train  # noqa: E402


class Recorded:
    """A training loader that writes down the images it hands out."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.sampler = loader.sampler
        self._path = f"{os.environ['DRILL_RECORD']}.rank{os.environ.get('RANK', 0)}.jsonl"

    @property
    def steps_in_epoch(self) -> int:
        return self._loader.steps_in_epoch

    def epoch(self, epoch: int, consumed: int = 0) -> tuple[Any, Iterator[Any]]:
        plans, batches = self._loader.epoch(epoch, consumed)
        return plans, self._noted(epoch, batches)

    def _noted(self, epoch: int, batches: Iterator[Any]) -> Iterator[Any]:
        with open(self._path, "a") as file:
            for images, target in batches:
                file.write(json.dumps([epoch, *map(digest, images)]) + "\n")
                file.flush()
                yield images, target


def digest(image: Tensor) -> str:
    """Of the values of one image, (3, H, W)."""
    return hashlib.blake2b(image.float().cpu().contiguous().numpy().tobytes(), digest_size=8).hexdigest()


if __name__ == "__main__":
    sys.exit(train.main(loader_wrapper=Recorded))

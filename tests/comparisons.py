"""What the tests of compare.py share: flags of small runs, the record, runs as they stand in it. Puts scripts/ on the path."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from ab.verdict import judge  # noqa: E402

TINY = "-a toy_models:tiny --b 8 --synthetic-size 400 --image-size 32 --num-classes 4 --opt-level O0 --tensorboard false --cpu-heap default".split()
QUICK = ["--rounds", "2", "--steps", "4", "--timing-warmup-steps", "1", "--output-dir", "out"]


def content(folder: str = "out") -> dict[str, Any]:
    return json.loads(Path(folder, "comparison.json").read_text())


def fake_run(arm: str, index: int, seconds: Sequence[float] = (0.1, 0.1, 0.1), **changes: Any) -> dict[str, Any]:
    """What a run of an arm leaves in comparison.json."""
    count = len(seconds)
    epoch = {"epoch": 0, "warmup_steps": 0, "seconds": list(seconds), "data_wait": [0.0] * count, "images": [8] * count}
    resolved = {"opt_level": "O0", "device": "cpu", "channels_last": arm != "a"}
    base = {"losses": [1.0, 0.9], "skipped_steps": 0, "peak_memory_gib": 1.0, "final": None, "resolved": resolved}
    return {"arm": arm, "round": index, "exit_code": 0, "epochs": [epoch], **base, **changes}


def judged(runs: list[dict[str, Any]]) -> Any:
    (found,) = judge({"arms": [{"name": "a"}, {"name": "b"}], "runs": runs, "settings": {"nproc_per_node": 1}})
    return found


def rounds_of(second: Sequence[float], **changes: Any) -> list[dict[str, Any]]:
    return [run for index, seconds in enumerate(second)
            for run in (fake_run("a", index), fake_run("b", index, [seconds] * 3, **changes))]  # fmt: skip

"""Unreadable images on two ranks: both end, or both go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dirty_files import write_empty
from helpers import launch, make_folder

from data.sampler import StepSampler


@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_alone_meets_is_why_the_run_failed(tmp_path: Path, rank: int):
    """The other rank notices no more than a lost connection, or torchrun's signal."""
    folder = make_folder(tmp_path / "set", train=8, val=2)
    paths = sorted(folder.glob("train/*/*.jpg"))
    first, *_ = StepSampler(16, 4, rank, 2)
    write_empty(bad := paths[first[0][1]])
    flags = "-a toy_models:tiny -b 4 --num-classes 2 -j 0 --output-dir run"
    done = launch(tmp_path, 2, folder, *flags.split(), timeout=120)
    assert done.returncode == 1
    assert "exitcode  : 5" in done.stderr
    assert done.stderr.count(f"error: cannot read {bad} (class {bad.parent.name}): the file is empty") == 1
    before = done.stderr.split("torch/distributed/elastic")[0]
    assert "Traceback" not in before
    ours = [line for line in before.splitlines() if line.startswith(("error", "note", "stopped"))]
    assert ours[-1].startswith(f"error: cannot read {bad} "), "nothing of ours after the sentence"
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 5)
    assert status["why"].startswith(f"cannot read {bad} ")

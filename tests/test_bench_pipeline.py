"""scripts/bench/bench_pipeline.py: the three runs, the bound and the exit codes. Never a time."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts" / "bench"))

import bench_pipeline  # noqa: E402
import make_photos  # noqa: E402


def test_the_bound() -> None:
    assert bench_pipeline.bound(100.0, 50.0, side_by_side=False) == pytest.approx(100 / 3)
    assert bench_pipeline.bound(100.0, 50.0, side_by_side=True) == 50.0
    values = {"loader alone": [100.0], "compute alone": [50.0], "from files": [30.0]}
    assert bench_pipeline.compare(values, "", False).ratio == pytest.approx(0.9)


def test_waiting_for_made_up_images_is_no_computing(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "train/a").mkdir(parents=True)
    (tmp_path / "train/a/1.jpg").touch()
    runs = bench_pipeline.Runs(bench_pipeline.parse([str(tmp_path)]))
    monkeypatch.setattr(runs, "_train", lambda *flags: {"images_per_sec_total": 75.0, "data_wait_share": 0.25})
    assert runs.compute() == pytest.approx(100.0)
    assert runs.files() == pytest.approx(75.0)


@pytest.mark.slow
def test_three_processes_and_one_ratio(tmp_path: Path, capsys) -> None:
    folder, result = tmp_path / "photos", tmp_path / "result.json"
    assert make_photos.main([str(folder), *"--classes 2 --train 8 --val 1".split()]) == 0
    flags = [str(folder), *f"-b 4 -j 0 --image-size 32 --rounds 1 --warmup-steps 1 --json {result}".split()]
    assert bench_pipeline.main([*flags, "--require", "1e-9"]) == 0
    assert "from files / bound" in capsys.readouterr().out
    content = json.loads(result.read_text())
    assert content["bound"] == "one after the other"
    assert all(len(content["values"][name]) == 1 for name in ("loader alone", "compute alone", "from files"))


def test_a_folder_without_images_ends_with_a_sentence(tmp_path: Path, capsys) -> None:
    assert bench_pipeline.main([str(tmp_path)]) == 1
    assert "holds no class folder" in capsys.readouterr().err

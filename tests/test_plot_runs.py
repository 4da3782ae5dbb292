"""scripts/plot_runs.py: any runs in one picture and one page."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import plot_runs  # isort: skip


def write_run(folder: Path, epochs: int, loss: float | None) -> Path:
    folder.mkdir(parents=True)
    lines = []
    for step in range(1, 4 * epochs + 1):
        lines.append({"kind": "step", "step": step, "loss": loss, "acc1": 50, "lr": 0.1, "images_per_sec_total": 9.5})
        if step % 4 == 0:
            lines.append({"kind": "epoch", "step": step, "train_loss": loss, "val_loss": 1.25, "train_acc1": 50,
                          "val_acc1": 40 + step, "images_per_sec_total": 10.5, "peak_memory_gib": 0.5})  # fmt: skip
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_two_runs_in_one_picture_and_one_page(tmp_path, capsys):
    runs = [write_run(tmp_path / "a<b", 2, 1.5), write_run(tmp_path / "other", 3, None)]
    assert plot_runs.main([*map(str, runs), "--output", str(tmp_path / "out/runs.png")]) == 0
    picture = Image.open(tmp_path / "out/runs.png")
    assert min(picture.size) > 600
    text = (tmp_path / "out/runs.html").read_text()
    assert "<td>a&lt;b</td><td>2</td><td>8</td><td>48.000</td><td>1.2500</td><td>10.5</td><td>0.50</td>" in text
    assert "<td>other</td><td>3</td>" in text
    assert "src='data:image/png;base64," in text
    assert "http" not in text
    assert "runs.html" in capsys.readouterr().out


def test_a_real_run_is_read(run, tmp_path):
    assert run("--output-dir", "real", "--epochs", 2) == 0
    found = plot_runs.read_run(tmp_path / "real")
    assert plot_runs.points(found.steps, "loss")[0] == list(range(1, 9))
    assert len(plot_runs.points(found.epochs, "val_acc1")[1]) == 2
    assert None not in plot_runs.points(found.steps, "lr")[1]


def test_runs_of_one_name_are_told_apart(tmp_path):
    folders = [write_run(tmp_path / arm / "run", 1, 1.0) for arm in "ab"]
    runs = plot_runs.name_apart([plot_runs.read_run(folder) for folder in folders], folders)
    assert [run.name for run in runs] == [str(folder) for folder in folders]


def test_a_line_being_written_is_left_out(tmp_path):
    folder = write_run(tmp_path / "run", 1, 1.0)
    with open(folder / "metrics.jsonl", "a") as stream:
        stream.write('{"kind": "st')
    assert len(plot_runs.read_run(folder).steps) == 4


@pytest.mark.parametrize("text", [None, "", "no json\n{}\n", "[1]\n", '{"kind": "step"}\n', "\udcff\n{}\n"])
def test_what_is_no_run_is_the_users_mistake(tmp_path, capsys, text):
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text(text, errors="surrogateescape")
    assert plot_runs.main([str(tmp_path), "--output", str(tmp_path / "x.png")]) == 2
    assert "metrics.jsonl" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()


def test_a_place_that_takes_no_file_is_the_users_mistake(tmp_path, capsys):
    write_run(tmp_path / "run", 1, 0.5)
    (tmp_path / "file").touch()
    assert plot_runs.main([str(tmp_path / "run"), "--output", str(tmp_path / "file/x.png")]) == 2
    assert "cannot be written" in capsys.readouterr().err

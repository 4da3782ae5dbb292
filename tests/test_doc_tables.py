"""The generated tables of README.md and docs/migrating.md, and the line that converts a file of another script."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import torch
from helpers import refused

from trainer.flags import ROWS
from trainer.peer_flags import read_peers
from trainer.weights import weights_from_file

ROOT = Path(__file__).resolve().parent.parent
MIGRATING = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")


def doc_tables(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts/doc_tables.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_tables_are_up_to_date() -> None:
    done = doc_tables(ROOT, "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run python scripts/doc_tables.py"


def test_a_new_row_is_found_missing_and_then_written(tmp_path: Path) -> None:
    for part in ("trainer", "scripts", "docs"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "README.md", tmp_path)
    flags = tmp_path / "trainer/flags.py"
    flags.write_text(flags.read_text().replace('"-a --arch', '"-a --net --arch'))
    with open(tmp_path / "trainer/peer_flags.yaml", "a") as table:
        table.write('- {flags: --new, of: timm, nearest: --lr, same_at: ["1"], why: a|b}\n')
    done = doc_tables(tmp_path, "--check")
    assert (done.returncode, done.stdout) == (1, "out of date: README.md, docs/migrating.md\n")
    assert doc_tables(tmp_path).stdout == "written: README.md, docs/migrating.md\n"
    assert "| `-a`, `--net`, `--arch`, `--model` | resnet18 |" in (tmp_path / "README.md").read_text()
    assert "| `--new` | timm | `--lr` | `1` | a\\|b |\n" in (tmp_path / "docs/migrating.md").read_text()
    assert doc_tables(tmp_path, "--check").returncode == 0


def test_every_flag_and_every_peer_flag_stands_in_its_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [flag for row in ROWS for flag in row.flags if f"`{flag}`" not in readme] == []
    assert [
        flag for peer in read_peers() for flag in peer.flags if f"`{flag}`" not in MIGRATING.replace("| DIR", "`DIR`")
    ] == []


def test_a_file_with_a_namespace_gives_its_weights_by_the_line_in_the_page(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": {"weight": torch.ones(2)}, "args": Namespace(lr=0.1)}, "checkpoint.pth")
    assert "checkpoint.pth" in refused(weights_from_file, "checkpoint.pth")
    line = re.search(r'`python -c "(.+?)"`', MIGRATING)
    assert line is not None
    subprocess.run([sys.executable, "-c", line[1]], check=True, timeout=60)
    assert weights_from_file("weights.pth")["weight"].tolist() == [1, 1]

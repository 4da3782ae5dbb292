"""Files that no decoder reads, one of each kind, as they are found in real image folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from helpers import write_image


def write_cut(path: Path) -> None:
    """The first half of a JPEG, as an interrupted copy leaves it."""
    write_image(path, size=64)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def write_empty(path: Path) -> None:
    path.write_bytes(b"")


def write_html(path: Path) -> None:
    """What a download script saves for a missing page."""
    path.write_bytes(b"<!DOCTYPE html><html><body>404 Not Found</body></html>")


def write_random(path: Path) -> None:
    path.write_bytes(np.random.default_rng(7).bytes(900))


KINDS = {"cut.jpg": write_cut, "empty.jpg": write_empty, "html.jpg": write_html, "random.jpg": write_random}


def spoil(folder: Path, prefix: str = "") -> list[Path]:
    """Add one bad file of each kind to a class folder; their paths."""
    paths = []
    for name, write in KINDS.items():
        paths.append(folder / (prefix + name))
        write(paths[-1])
    return paths

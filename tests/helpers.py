"""Small folders of images, the records of a run, processes, and the sentence of a mistake, for tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from trainer.errors import UserError


def write_image(path: Path, colour: Sequence[int] = (128, 128, 128), size: int = 40, seed: int = 0) -> Path:
    """One image of a colour under noise; the suffix picks the format."""
    noise = np.random.default_rng(seed).integers(-24, 25, (size, size, 3))
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.clip(np.asarray(colour) + noise, 0, 255).astype(np.uint8))
    image.save(path, format={".jpg": "JPEG", ".jpeg": "JPEG"}.get(path.suffix.lower()))
    return path


def make_folder(
    root: Path, classes: Sequence[str] = ("a", "b"), train: int = 8, val: int = 4, size: int = 40, seed: int = 0
) -> Path:
    """``root/train`` and ``root/val`` with ``train`` and ``val`` JPEGs a class; a class has a colour of its own."""
    colours = _colours(len(classes))
    for split, count in (("train", train), ("val", val)):
        for label, name in enumerate(classes):
            for number in range(count):
                at = seed + 7919 * number + 104729 * label + (split == "val")
                write_image(root / split / name / f"{number:03d}.jpg", colours[label], size, at)
    return root


def _colours(count: int) -> list[tuple[int, int, int]]:
    """Colours far apart: the corners of a cube first, then its inside."""
    levels = (40, 215, 128)
    found = sorted(((r, g, b) for r in levels for g in levels for b in levels), key=lambda c: c.count(128))
    return [found[(label * 5) % 8] if label < 8 else found[label % len(found)] for label in range(count)]


def damage(folder: Path) -> dict[str, Path]:
    """One file of each kind of damage that a header shows, in train/a; their names say which."""
    place = folder / "train/a"
    (place / "empty.jpg").touch()
    (place / "page.jpg").write_bytes(b"<!DOCTYPE html><html><body>404 Not Found</body></html>")
    (place / "noise.jpg").write_bytes(bytes(range(7, 207)) * 20)
    whole = write_image(folder / "other.jpg", size=96).read_bytes()
    (place / "half.jpg").write_bytes(whole[: len(whole) // 2])
    shutil.copy(folder / "train/a/000.jpg", place / "fine.jpg")
    return {name: place / f"{name}.jpg" for name in ("empty", "page", "noise", "half", "fine")}


def rename_val(folder: Path) -> Path:
    """As in ImageNet: no file of val has the name of one of train."""
    for path in sorted(folder.glob("val/*/*.jpg")):
        path.rename(path.with_name(f"val_{path.name}"))
    return folder


def refused(function: Callable[..., object], *arguments: object) -> str:
    """The one line of the UserError that a call ends in."""
    with pytest.raises(UserError) as caught:
        function(*arguments)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rows(folder: Path | str, kind: str = "step") -> list[dict[str, Any]]:
    """Records of one kind in a run's metrics.jsonl."""
    found = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if row["kind"] == kind]


def torchrun(
    folder: Path,
    ranks: int,
    script: Path,
    *flags: object,
    options: Sequence[str] = (),
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """A script under torchrun in ``folder``, with the toy models on its path; the finished process."""
    command = [sys.executable, "-m", "torch.distributed.run", *options, "--standalone", "--nproc-per-node", str(ranks)]
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environ = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    return subprocess.run(
        [*command, str(script), *(str(flag) for flag in flags)],
        cwd=folder, env={**environ, "PYTHONPATH": paths, **(env or {})}, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip

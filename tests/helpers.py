"""Small folders of images, runs in processes of their own, and the sentence of a mistake, for tests."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from data.folder import FolderError, scan_data_dir
from trainer.config import TrainConfig
from trainer.errors import UserError

ROOT = Path(__file__).parent.parent
SMALL = ["--image-size", "32", "--num-classes", "4", "-p", "1", "--tensorboard", "false", "--epochs", "1"]


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


def folder_refused(folder: Path) -> str:
    """The one line of the FolderError that listing a data folder ends in."""
    with pytest.raises(FolderError) as caught:
        scan_data_dir(str(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def taken(config: TrainConfig, *keys: str) -> tuple:
    """The values of these settings."""
    return tuple(getattr(config, key) for key in keys)


def launch(
    folder: Path,
    ranks: int,
    *flags: object,
    options: Sequence[str] = (),
    env: dict[str, str] | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """train.py under torchrun in ``folder``; the finished process."""
    return torchrun(folder, ranks, ROOT / "train.py", *SMALL, *flags, options=options, env=env, timeout=timeout)


def torchrun(
    folder: Path,
    ranks: int,
    script: Path,
    *flags: object,
    options: Sequence[str] = (),
    env: dict[str, str] | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """A script under torchrun in ``folder``, with the toy models on its path; the finished process."""
    command = [sys.executable, "-m", "torch.distributed.run", *options, "--standalone", "--nproc-per-node", str(ranks)]
    paths = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environ = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    arguments = [*command, str(script), *(str(flag) for flag in flags)]
    return run_bounded(arguments, folder, {**environ, "PYTHONPATH": paths, **(env or {})}, timeout)


def run_bounded(
    command: Sequence[str], folder: Path, environ: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """The finished process. One that takes too long fails the test with what it printed, and nothing that it
    started goes on."""
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, errors = process.communicate(timeout=timeout)
    except BaseException as error:
        _kill_with_children(process.pid)
        printed, errors = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            pytest.fail(f"not over after {timeout:g} s; it printed\n{printed[-4000:]}\nand as errors\n{errors[-4000:]}")
        raise
    return subprocess.CompletedProcess(command, process.returncode, printed, errors)


def _kill_with_children(pid: int) -> None:
    """The process groups of a process and of all below it: torchrun gives each rank a group of its own."""
    groups, parents = {pid}, {pid}
    table = [_parent_and_group(path) for path in Path("/proc").glob("[0-9]*")]
    for _ in table:
        below = {process: group for process, parent, group in table if parent in parents and process not in parents}
        if not below:
            break
        parents |= below.keys()
        groups |= set(below.values())
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _parent_and_group(path: Path) -> tuple[int, int, int]:
    """A process, its parent and its group, from its folder in /proc."""
    try:
        fields = (path / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended meanwhile
        return int(path.name), 0, 0
    return int(path.name), int(fields[1]), int(fields[2])


def rows(folder: Path | str, kind: str = "step") -> list[dict[str, Any]]:
    """The lines of a kind ("step", "epoch") of a run's metrics.jsonl."""
    found = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if row["kind"] == kind]


def load(folder: Path | str = "run", name: str = "last.pt") -> dict:
    """A checkpoint of a run."""
    return torch.load(Path(folder, "checkpoints", name), weights_only=True)


def assert_same_end(one: str, two: str) -> None:
    """Two runs ended with the same bits and counts, and logged the same steps."""
    first, second = load(one), load(two)
    for name, tensor in first["state_dict"].items():
        assert torch.equal(tensor, second["state_dict"][name]), name
    for index, entry in first["optimizer"].items():
        assert torch.equal(entry["momentum_buffer"], second["optimizer"][index]["momentum_buffer"])
    if first["ema"] and second["ema"]:
        assert first["ema"]["updates"] == second["ema"]["updates"]
        for name, tensor in first["ema"]["state_dict"].items():
            same = torch.equal(tensor, second["ema"]["state_dict"][name]) if isinstance(tensor, torch.Tensor) else True
            assert same, f"average of {name}"
    for key in ("step", "images_seen", "epoch", "best_acc1", "best_epoch", "precision"):
        assert first[key] == second[key], key
    keys = ("epoch", "step", "images_seen", "loss", "acc1", "lr", "grad_norm")
    assert [[row[key] for key in keys] for row in rows(one)] == [[row[key] for key in keys] for row in rows(two)]

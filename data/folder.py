"""Class folders on disk -> an index of files and labels."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data.index import Names

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"})


class FolderError(ValueError):
    """A data folder that cannot be trained on: what was found and how to mend it, in one sentence."""


@dataclass(frozen=True)
class FolderIndex:
    """Files of one split, sorted by class then path. ``labels`` (N,) int32 indexes ``classes``."""

    folder: str
    classes: tuple[str, ...]
    paths: Names
    labels: np.ndarray
    ignored: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return self.paths[index]

    def read(self, index: int) -> bytes:
        with open(self.paths[index], "rb") as file:
            return file.read()

    def describe(self) -> str:
        left_out = ", ".join(f"{count} {kind}" for kind, count in sorted(self.ignored.items()))
        return f"{len(self)} images, {len(self.classes)} classes" + (f" (left out: {left_out})" if left_out else "")


def scan_data_dir(data_dir: str) -> tuple[FolderIndex, FolderIndex]:
    """Index ``data_dir/train`` and ``data_dir/val``; val's labels follow train's class names."""
    if not os.path.isdir(data_dir):
        raise FolderError(f"no folder {data_dir}: DIR must hold train/ and val/ with one folder a class")
    found = sorted(entry.name for entry in os.scandir(data_dir))
    for split in ("train", "val"):
        if not os.path.isdir(os.path.join(data_dir, split)):
            listing = f"it holds {', '.join(found[:6])}" if found else "it is empty"
            raise FolderError(
                f"{data_dir} has no {split}/ folder ({listing}): DIR must hold train/ and val/, one folder a class"
            )
    train = _scan_split(Path(data_dir, "train"), None)
    empty = set(range(len(train.classes))) - set(train.labels.tolist())
    if empty:
        names = ", ".join(train.classes[label] for label in sorted(empty)[:3])
        raise FolderError(f"no image in {train.folder} for class {names}: fill or remove the folder")
    return train, _scan_split(Path(data_dir, "val"), train.classes)


def _scan_split(folder: Path, classes: tuple[str, ...] | None) -> FolderIndex:
    ignored: Counter[str] = Counter()
    names = []
    loose = 0
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith("."):
            ignored["hidden"] += 1
        elif entry.is_dir():
            names.append(entry.name)
        else:
            loose += 1
    if not names:
        raise FolderError(
            f"{folder} holds {loose} files and no class folder: put each class's images into a folder of its own"
        )
    if loose:
        ignored["outside class folders"] = loose
    known = classes if classes is not None else tuple(names)
    paths: list[str] = []
    labels: list[int] = []
    for name in names:
        files = _image_files(folder / name, ignored)
        if name not in known:
            if files:
                raise FolderError(f"{folder} has class {name!r}, which train/ has not: rename or remove it")
            ignored["empty folders of no known class"] += 1
            continue
        paths += files
        labels += [known.index(name)] * len(files)
    if not paths:
        raise FolderError(f"no image below {folder}: files must end in {', '.join(sorted(SUFFIXES))}")
    return FolderIndex(str(folder), known, Names(paths), np.array(labels, dtype=np.int32), dict(ignored))


def _image_files(folder: Path, ignored: Counter[str]) -> list[str]:
    files = []
    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen or (parent != str(folder) and os.path.realpath(folder).startswith(real + os.sep)):
            folders.clear()  # a link that leads back up
            continue
        seen.add(real)
        hidden = [name for name in (*folders, *names) if name.startswith(".")]
        if hidden:
            ignored["hidden"] += len(hidden)
        folders[:] = sorted(set(folders).difference(hidden))
        for name in sorted(set(names).difference(hidden)):
            if os.path.splitext(name)[1].lower() in SUFFIXES:
                files.append(os.path.join(parent, name))
            else:
                ignored[os.path.splitext(name)[1].lower() or "no suffix"] += 1
    return files

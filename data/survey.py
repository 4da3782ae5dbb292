"""A folder that cannot be trained on, looked at anyway: all that is wrong with its classes, and the files it holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from data.folder import SUFFIXES, FolderError
from data.index import Names, SampleIndex

SPLITS = ("train", "val")
NO_CLASS = "(no class)"
_NAMED = 10


@dataclass(frozen=True)
class SurveyIndex:
    """Every image file of one split, whatever its class. A class folder without images is in ``classes`` too."""

    classes: tuple[str, ...]
    paths: Names
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return self.paths[index]

    def read(self, index: int) -> bytes:
        with open(self.paths[index], "rb") as file:
            return file.read()

    def describe(self) -> str:
        return f"{len(self)} images, {sum(name != NO_CLASS for name in self.classes)} classes"


def survey(
    data_dir: str, scan: Callable[[], tuple[SampleIndex, SampleIndex] | None], more_rules: bool
) -> tuple[dict[str, SampleIndex], list[str]]:
    """The splits and what is wrong with their classes, nothing where ``scan`` takes the folder.

    ``more_rules``: ``scan`` goes by a list or map of classes too, which nothing here knows: its sentence is a
    finding of its own, and a flat val none. Raises FolderError where there is no folder at all.
    """
    try:
        both = scan()
    except FolderError as error:
        if not os.path.isdir(data_dir):
            raise
        refused = str(error)
    else:
        assert both is not None, "there is no data without a folder or tar files"
        return dict(zip(SPLITS, both, strict=True)), []
    found: dict[str, SampleIndex] = {}
    findings: list[str] = []
    for split in SPLITS:
        folder = os.path.join(data_dir, split)
        if not os.path.isdir(folder):
            findings.append(f"{data_dir} has no {split}/ folder: DIR must hold train/ and val/, one folder a class")
            continue
        try:
            index = found[split] = _list_split(folder)
        except OSError as error:
            findings.append(f"cannot list {error.filename or folder}: {error.strerror}; make it readable")
            continue
        flat = NO_CLASS in index.classes and len(index.classes) == 1
        if not len(index):
            findings.append(f"no image below {folder}: files must end in {', '.join(sorted(SUFFIXES))}")
        elif flat and not (more_rules and split == "val"):
            findings.append(
                f"{folder} holds {len(index)} images and no class folder: put each class's images into a folder of its own"
            )
    findings += _class_findings(found, data_dir)
    return found, [refused, *findings] if more_rules or not findings else findings


def _class_findings(found: dict[str, SampleIndex], data_dir: str) -> list[str]:
    findings = []
    train, val = found.get("train"), found.get("val")
    if train is not None and len(train):
        filled = _filled(train)
        empty = [name for name in train.classes if name not in filled]
        if empty:
            findings.append(
                f"{data_dir}/train holds no image of {_some(empty, len(train.classes))}: fill or remove the folders"
            )
    if train is not None and val is not None:
        known = {*train.classes, NO_CLASS}
        filled = _filled(val)
        unknown = [name for name in val.classes if name in filled and name not in known]
        if unknown:
            findings.append(
                f"{data_dir}/val holds images of {_some(unknown, len(val.classes))} that train/ has not: "
                "rename or remove the folders"
            )
    return findings


def _filled(index: SampleIndex) -> set[str]:
    return {index.classes[label] for label in np.unique(index.labels)}


def _some(names: list[str], of: int) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)} of {of} classes ({', '.join(names[:_NAMED])}{more})"


def _list_split(folder: str) -> SurveyIndex:
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    loose = sorted(entry.path for entry in os.scandir(folder) if not entry.is_dir() and _is_image(entry.name))
    groups = [(name, list(_images_below(os.path.join(folder, name)))) for name in names]
    if loose:
        groups.append((NO_CLASS, loose))
    labels = [label for label, (_, files) in enumerate(groups) for _ in files]
    paths = Names(path for _, files in groups for path in files)
    return SurveyIndex(tuple(name for name, _ in groups), paths, np.array(labels, dtype=np.int32))


def _images_below(folder: str) -> Iterator[str]:
    seen: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:
            folders.clear()  # a link that leads back up
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(parent, name) for name in sorted(names) if _is_image(name))


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES

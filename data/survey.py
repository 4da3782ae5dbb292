"""A folder that cannot be trained on, looked at anyway: all that is wrong with its classes, and the files it holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from data.index import Names, SampleIndex
from data.listing import SUFFIXES, FolderError, list_split

SPLITS = ("train", "val")
NO_CLASS = "(no class)"
_NAMED = 10


@dataclass(frozen=True)
class SurveyIndex:
    """Every image file of one split, whatever its class. A class folder without images is in ``classes`` too."""

    folder: str
    classes: tuple[str, ...]
    paths: Names
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, index: int) -> str:
        return os.path.join(self.folder, self.paths[index])

    def read(self, index: int) -> bytes:
        with open(self.name(index), "rb") as file:
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
            index = found[split] = _survey_split(folder)
        except FolderError as error:
            findings.append(str(error))
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


def _survey_split(folder: str) -> SurveyIndex:
    listing = list_split(folder)
    loose = listing.owners < 0
    classes = (*listing.classes, NO_CLASS) if loose.any() else listing.classes
    labels = np.where(loose, len(listing.classes), listing.owners).astype(np.int32)
    return SurveyIndex(folder, classes, listing.files, labels)

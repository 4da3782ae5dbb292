"""DIR/train and DIR/val -> an index of files and labels each, and what is said about a DIR that cannot be one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data.folder_cache import list_and_keep, load, load_or_list
from data.index import Names, contents_of
from data.labels import label_flat_files, read_class_map, write_class_map
from data.listing import SUFFIXES, FolderError, Listing, class_folders, list_split, some

__all__ = ["SUFFIXES", "FolderError", "FolderIndex", "check_dir", "scan_data_dir"]

_SHAPE = "DIR must hold train/ and val/, one folder a class"
_KINDS_SHOWN = 6


@dataclass(frozen=True)
class FolderIndex:
    """Files of one split, sorted by class name then path. ``labels`` (N,) int32 indexes ``classes``.

    ``paths`` are relative to ``folder``; ``ignored`` counts by kind what was left out.
    """

    folder: str
    classes: tuple[str, ...]
    paths: Names
    labels: np.ndarray
    ignored: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def contents(self) -> dict[str, Any]:
        return contents_of(self.labels, self.paths)

    def name(self, index: int) -> str:
        return os.path.join(self.folder, self.paths[index])

    def read(self, index: int) -> bytes:
        with open(self.name(index), "rb", opener=_without_waiting) as file:
            return file.read() or b""

    def describe(self) -> str:
        bare = len(self.classes) - len(np.unique(self.labels))
        text = f"{len(self)} images, {len(self.classes)} classes"
        text += f", {bare} of them without an image" if bare else ""
        kinds = sorted(self.ignored.items(), key=lambda item: (-item[1], item[0]))
        parts = [f"{count} {kind}" for kind, count in kinds[:_KINDS_SHOWN]]
        if len(kinds) > _KINDS_SHOWN:
            rest = [count for _, count in kinds[_KINDS_SHOWN:]]
            parts.append(f"{sum(rest)} of {len(rest)} other kinds")
        return text + (f" (left out: {', '.join(parts)})" if parts else "")


def scan_data_dir(
    data_dir: str, *, val_labels: str | None = None, class_map: str | None = None, rescan: bool = False
) -> tuple[FolderIndex, FolderIndex]:
    """Index ``data_dir/train`` and ``data_dir/val``; val's labels follow train's class names.

    ``val_labels``: file of ``file name,class`` lines for a val folder without class folders. ``class_map``: JSON
    file of class names in the order of their indices; it pins them if it exists and is written otherwise. Its
    names may lack a folder in train, but no folder of train may lack in it. ``rescan``: list anew what the last
    start listed. What is quick to find wrong is found before train is listed. Raises FolderError.
    """
    check_dir(data_dir)
    train_dir, val_dir = (os.path.join(data_dir, split) for split in ("train", "val"))
    pinned = read_class_map(class_map) if class_map else None
    kept = None if rescan else load(train_dir)
    names = kept.classes if kept else class_folders(train_dir)
    if not names:
        raise _flat(train_dir, list_split(train_dir))
    unpinned = sorted(set(names).difference(pinned or names))
    if unpinned:
        raise FolderError(
            f"{train_dir} has class {some(unpinned)}, which --class-map {class_map} has not: "
            "add the name at the file's end or remove the folder"
        )
    known = {name: label for label, name in enumerate(pinned or names)}
    val = _index_val(val_dir, load_or_list(val_dir, rescan), known, val_labels, class_map if pinned else None)
    listing = kept or list_and_keep(train_dir)
    if listing.classes != names:
        raise FolderError(f"the class folders of {train_dir} changed while they were listed: start again")
    train = _index_train(train_dir, listing, known)
    if class_map and not pinned:
        write_class_map(class_map, train.classes)
    return train, val


def _without_waiting(path: str, flags: int) -> int:
    """Of a pipe that stands where the scan saw a file nothing comes; opened the usual way it would hold up its reader."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def check_dir(data_dir: str) -> None:
    """Raises FolderError for what is wrong with ``data_dir`` at first sight."""
    if not os.path.isdir(data_dir):
        what = f"{data_dir} is no folder" if os.path.exists(data_dir) else f"no folder {data_dir}"
        raise FolderError(f"{what}: DIR must hold train/ and val/ with one folder a class")
    if os.path.realpath(data_dir) == os.path.dirname(os.path.realpath(__file__)):
        raise FolderError(f"{data_dir} is this program's own code, not a data set: {_SHAPE}")
    for split in ("train", "val"):
        if os.path.isdir(os.path.join(data_dir, split)):
            continue
        found = _names_in(data_dir)
        listing = f"it holds {', '.join(found[:6])}{', ...' * (len(found) > 6)}" if found else "it is empty"
        raise FolderError(f"{data_dir} has no {split}/ folder ({listing}): {_SHAPE}{_better(data_dir, found)}")


def _names_in(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise FolderError(f"cannot list {folder}: {error.strerror}; make it readable") from error


def _better(data_dir: str, found: Sequence[str]) -> str:
    """Where the folder that was meant seems to be: around this one or right in it."""
    for folder in (os.path.dirname(os.path.abspath(data_dir)), *(os.path.join(data_dir, name) for name in found[:50])):
        if all(os.path.isdir(os.path.join(folder, split)) for split in ("train", "val")):
            return f"; {folder} does"
    return ""


def _flat(folder: str, listing: Listing, remedy: str = "") -> FolderError:
    count = len(listing.files) + sum(listing.loose.values())
    return FolderError(
        f"{folder} holds {count} files and no class folder: put each class's images into a folder of its own{remedy}"
    )


def _index_train(folder: str, listing: Listing, known: Mapping[str, int]) -> FolderIndex:
    counts = np.bincount(listing.owners[listing.owners >= 0], minlength=len(listing.classes))
    empty = [name for name, count in zip(listing.classes, counts, strict=True) if not count]
    if empty:
        shown = ", ".join(empty[:3]) + (f" and {len(empty) - 3} more" if len(empty) > 3 else "")
        raise FolderError(f"no image in {folder} for class {shown}: fill or remove the folder")
    return _index(folder, listing, known, Counter())


def _index_val(
    folder: str, listing: Listing, known: Mapping[str, int], val_labels: str | None, class_map: str | None
) -> FolderIndex:
    if val_labels:
        return _index_flat_val(folder, listing, known, val_labels)
    if not listing.classes:
        raise _flat(folder, listing, ", or name a list of `file name,class` lines with --val-labels FILE")
    filled = np.unique(listing.owners[listing.owners >= 0]).tolist()
    unknown = [listing.classes[owner] for owner in filled if listing.classes[owner] not in known]
    if unknown:
        owner = f"neither train/ nor --class-map {class_map} has" if class_map else "train/ has not"
        raise FolderError(f"{folder} has class {some(unknown)}, which {owner}: rename or remove it")
    ignored = Counter({"empty folders of no known class": len(set(listing.classes).difference(known))})
    index = _index(folder, listing, known, ignored)
    if not len(index):
        raise FolderError(f"no image below {folder}: files must end in {', '.join(sorted(SUFFIXES))}")
    return index


def _index_flat_val(folder: str, listing: Listing, known: Mapping[str, int], val_labels: str) -> FolderIndex:
    files = listing.flat_files()
    if not files:
        found = f"holds class folders ({some(listing.classes)})" if listing.classes else "holds no image"
        raise FolderError(
            f"--val-labels {val_labels} is for images right in {folder}, which {found}: "
            f"{'drop --val-labels' if listing.classes else 'move the images there'}"
        )
    labels, without_file = label_flat_files(val_labels, folder, files, known)
    ignored = Counter(listing.loose) + Counter(listing.ignored)
    ignored["in folders"] += len(listing.files) - len(files)
    ignored["listed names without a file"] += without_file
    return FolderIndex(folder, tuple(known), Names(files), labels, dict(+ignored))


def _index(folder: str, listing: Listing, known: Mapping[str, int], ignored: Counter[str]) -> FolderIndex:
    """The files in class folders, sorted by class then path."""
    flat = int((listing.owners < 0).sum())
    ignored.update(listing.ignored)
    ignored["outside class folders"] += flat + sum(listing.loose.values())
    label_of = np.array([known.get(name, -1) for name in listing.classes], dtype=np.int32)
    paths = listing.files.since(flat)
    return FolderIndex(folder, tuple(known), paths, label_of[listing.owners[flat:]], dict(+ignored))

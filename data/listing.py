"""What lies below one split's folder: every image file by class folder, and what was left out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from data.index import Names

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"})


BROKEN = "broken links"


class FolderError(ValueError):
    """A data folder that cannot be trained on: what was found and how to mend it, in one sentence."""


@dataclass(frozen=True)
class Listing:
    """One split as it lies on disk, before any rule of which folder is which class.

    ``classes``: folders of the split by name. ``files``: images relative to the split's folder, those right in it
    first, then by class and path. ``owners`` (N,) int32: the class folder of each, -1 right in the split's folder.
    ``ignored``, ``loose``: counts by kind of what is no image, below the class folders (hidden names: anywhere) and
    right in the split's folder. ``walked``: every folder looked into; ``changed`` (F, 2) int64: when each last
    changed in content and in status, nanoseconds.
    """

    classes: tuple[str, ...]
    files: Names
    owners: np.ndarray
    ignored: dict[str, int]
    loose: dict[str, int]
    walked: Names
    changed: np.ndarray

    def flat_files(self) -> list[str]:
        """The images right in the split's folder."""
        return [self.files[index] for index in range(int((self.owners < 0).sum()))]


def change_times(path: str) -> tuple[int, int]:
    """When a folder last changed, (content, status) in nanoseconds. Raises OSError.

    The status's time too: copying tools set the other one back after they have added files.
    """
    status = os.stat(path)
    return status.st_mtime_ns, status.st_ctime_ns


def class_folders(folder: str) -> tuple[str, ...]:
    """Names of the class folders alone: one look, where a whole listing may take minutes. Raises FolderError."""
    return tuple(name for name, _ in _Walk(folder).look("", Counter(), Counter())[0])


def list_split(folder: str) -> Listing:
    """List everything below ``folder``, following links. Raises FolderError where a folder cannot be read."""
    walk = _Walk(folder)
    ignored: Counter[str] = Counter()
    loose: Counter[str] = Counter()
    found, flat = walk.look("", ignored, loose)
    files, owners = list(flat), [-1] * len(flat)
    for owner, (name, is_link) in enumerate(found):
        below = walk.images_below(name, is_link, ignored)
        files += below
        owners += [owner] * len(below)
    return Listing(
        classes=tuple(name for name, _ in found),
        files=Names(files),
        owners=np.array(owners, dtype=np.int32),
        ignored=dict(ignored),
        loose=dict(loose),
        walked=Names(walk.walked),
        changed=np.array(walk.changed, dtype=np.int64),
    )


def list_images(folder: str) -> tuple[list[str], dict[str, str], dict[str, int]]:
    """Every image below ``folder``, relative to it; links to folders that are listed themselves, by name, and where
    they lead; by kind what was left out. The rules of a split, for a folder whose class folders are not known.

    Raises FolderError where a folder cannot be read.
    """
    walk = _Walk(folder)
    root = os.path.realpath(folder)
    ignored: Counter[str] = Counter()
    images: list[str] = []
    links: dict[str, str] = {}

    def go(relative: str, above: frozenset[str]) -> None:
        real = os.path.realpath(os.path.join(folder, relative))
        if real in above:  # a link that leads back up
            return
        folders, files = walk.look(relative, ignored, ignored)
        images.extend(os.path.join(relative, file) for file in files)
        for name, is_link in folders:
            below = os.path.join(relative, name)
            listed = _listed_as(os.path.realpath(os.path.join(folder, below)), root) if is_link else None
            if listed is None:
                go(below, above | {real})
            elif os.path.join(root, listed) not in above | {real}:
                links[below] = listed

    go("", frozenset(_parents(root)))
    return images, links, dict(ignored)


def _listed_as(real: str, root: str) -> str | None:
    """The name below ``root`` of a folder that a walk through it meets; None for others."""
    inside = real.startswith(os.path.join(root, ""))
    relative = os.path.relpath(real, root) if inside else ""
    return relative if inside and not any(map(hidden_kind, relative.split(os.sep))) else None


class _Walk:
    """Looks into folders of one split and notes which, and when they had last changed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._real = os.path.realpath(folder)
        self.walked: list[str] = []
        self.changed: list[tuple[int, int]] = []

    def look(
        self, relative: str, hidden: Counter[str], others: Counter[str]
    ) -> tuple[list[tuple[str, bool]], list[str]]:
        """Sorted (folder, whether it is a link) and image names; counts what is hidden and what is no image."""
        path = os.path.join(self._folder, relative) if relative else self._folder
        folders, images = [], []
        try:
            # Before the names are read: a change in between must look like one.
            changed = change_times(path)
            with os.scandir(path) as entries:
                for entry in entries:
                    kind = hidden_kind(entry.name)
                    if kind:
                        hidden[kind] += 1
                    elif _is(entry.is_dir):
                        folders.append((entry.name, entry.is_symlink()))
                    elif not _is(entry.is_file):  # a pipe is none either: who opens one waits for a writer
                        others[BROKEN if entry.is_symlink() else "special files"] += 1
                    elif os.path.splitext(entry.name)[1].lower() in SUFFIXES:
                        images.append(entry.name)
                    else:
                        others[os.path.splitext(entry.name)[1].lower() or "no suffix"] += 1
        except OSError as error:
            raise FolderError(
                f"cannot list {path}: {error.strerror}; make it readable, or move it out of DIR"
            ) from error
        self.walked.append(relative)
        self.changed.append(changed)
        return sorted(folders), sorted(images)

    def images_below(self, name: str, is_link: bool, ignored: Counter[str]) -> list[str]:
        """Images of one class folder, relative to the split's, its own before those of the folders below it."""
        start = os.path.realpath(os.path.join(self._folder, name)) if is_link else os.path.join(self._real, name)
        above = {*_parents(self._real), self._real, *_parents(start)}
        seen: set[str] = set()
        images: list[str] = []
        stack = [(name, start)]
        while stack:
            relative, real = stack.pop()
            if real in seen or real in above:  # a link that leads back up, or to where the walk has been
                continue
            seen.add(real)
            folders, files = self.look(relative, ignored, ignored)
            images += [f"{relative}/{file}" for file in files]
            for below, leads_on in reversed(folders):
                path = os.path.join(real, below)
                stack.append((f"{relative}/{below}", os.path.realpath(path) if leads_on else path))
        return images


def hidden_kind(name: str) -> str | None:
    """What kind of name never stands for data: None for one that may."""
    if name.startswith("._") or name == "__MACOSX":
        return "AppleDouble"
    return "hidden" if name.startswith(".") else None


def some(names: Sequence[str], limit: int = 3) -> str:
    """The first of the names, quoted, and how many more there are."""
    text = ", ".join(repr(name) for name in names[:limit])
    return f"{text} and {len(names) - limit} more" if len(names) > limit else text


def _is(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except OSError:  # a link to itself, or to where we may not look
        return False


def _parents(path: str) -> list[str]:
    parents = []
    while os.path.dirname(path) != path:
        path = os.path.dirname(path)
        parents.append(path)
    return parents

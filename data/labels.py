"""What a user says about classes: the label list of a flat val folder, and the class map."""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.cache_files import replace_file
from data.listing import FolderError, some

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def label_flat_files(
    path: str, folder: str, files: Sequence[str], classes: Mapping[str, int]
) -> tuple[np.ndarray, int]:
    """Labels (N,) int32 of ``files``, and how many names of the list have no file.

    ``path``: csv or text, ``name,class`` a line, the name with or without its suffix; ``classes``: train's, by name.
    Raises FolderError: a file without a line, or with a class not among ``classes``.
    """
    listed = _read_label_list(path, classes, set(files))
    labels = np.empty(len(files), dtype=np.int32)
    missing, unknown, used = [], [], set()
    for index, file in enumerate(files):
        name = file if file in listed else os.path.splitext(file)[0]
        if name not in listed:
            missing.append(file)
            continue
        used.add(name)
        label = _class_of(listed[name], classes)
        if label is None:
            unknown.append(f"{listed[name][:60]} of {file}")
        else:
            labels[index] = label
    if unknown:
        raise FolderError(
            f"--val-labels {path} gives images a class that train/ has not ({some(unknown)}): "
            f"name the folders of train/, such as {next(iter(classes))!r}"
        )
    if missing:
        raise FolderError(
            f"--val-labels {path} has no line for {len(missing)} of {len(files)} images of {folder} "
            f"({some(missing)}): add them, or move the images away"
        )
    return labels, len(listed) - len(used)


def _read_label_list(path: str, classes: Mapping[str, int], files: set[str]) -> dict[str, str]:
    rows = _rows(path)
    if rows and _is_header(rows[0][1], classes, files):
        del rows[0]
    listed: dict[str, str] = {}
    for number, row in rows:
        if len(row) < 2 or not row[0] or not row[1]:
            raise FolderError(
                f"--val-labels {path}, line {number}: {','.join(row)[:80]!r} is no `file name,class`: give both, "
                "the class as the name of its folder in train/"
            )
        name = _base(row[0])
        if listed.setdefault(name, row[1]) != row[1]:
            raise FolderError(
                f"--val-labels {path}, line {number}: {name!r} is of class {row[1]!r} here and of class "
                f"{listed[name]!r} above: keep one line"
            )
    if not listed:
        raise FolderError(f"--val-labels {path} holds no line: it needs `file name,class` for each image")
    return listed


def _rows(path: str) -> list[tuple[int, list[str]]]:
    """Line numbers and fields: comma, tab or white space separates them, whichever the first line has."""
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            head = stream.read(4096)
            if "\0" in head:
                raise FolderError(f"--val-labels {path} is no text file: save it as UTF-8, `file name,class` a line")
            stream.seek(0)
            first = next((line for line in head.splitlines() if line.strip()), "")
            if "," in first or "\t" in first:
                reader = csv.reader(stream, delimiter="," if "," in first else "\t", skipinitialspace=True)
                rows = [(reader.line_num, [field.strip() for field in row]) for row in reader]
            else:
                rows = [(number, line.split(None, 1)) for number, line in enumerate(stream, 1)]
                rows = [(number, [field.strip() for field in row]) for number, row in rows]
    except OSError as error:
        raise FolderError(f"--val-labels {path}: {error.strerror}; give a readable text or csv file") from error
    except csv.Error as error:
        raise FolderError(f"--val-labels {path} is no csv file ({error}): give `file name,class` a line") from error
    return [(number, row) for number, row in rows if any(row)]


def _is_header(row: Sequence[str], classes: Mapping[str, int], files: set[str]) -> bool:
    if len(row) < 2 or _class_of(row[1], classes) is not None:
        return False
    return not any(_base(row[0]) in (file, os.path.splitext(file)[0]) for file in files)


def _base(name: str) -> str:
    """The last part of a path of either kind."""
    return name.replace("\\", "/").rsplit("/", 1)[-1]


def _class_of(text: str, classes: Mapping[str, int]) -> int | None:
    """A class's index. Boxes may follow it, as in ILSVRC's ``LOC_val_solution.csv``: each a class and four numbers."""
    if text in classes:
        return classes[text]
    words = text.split()
    numbers = [word for at, word in enumerate(words) if at % 5]
    has_boxes = words and len(words) % 5 == 0 and all(map(_NUMBER.fullmatch, numbers))
    return classes.get(words[0]) if has_boxes else None


def read_class_map(path: str) -> tuple[str, ...] | None:
    """Class names in the order of their indices, or None if there is no such file yet.

    Reads a JSON list of names and, as torchvision has it, an object of name to index. Raises FolderError.
    """
    where, wanted = f"--class-map {path}", "a JSON list of class names in the order of their indices"
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8-sig"), object_pairs_hook=_Pairs)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FolderError(f"{where}: {error.strerror}; name a file that can be read, or a new one") from error
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{where} is no JSON ({error}): it must hold {wanted}") from error
    names = [name for name, _ in content.pairs] if isinstance(content, _Pairs) else content
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise FolderError(f"{where} must hold {wanted}")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise FolderError(f"{where} names {some(twice)} more than once: keep one line a class")
    if isinstance(content, _Pairs):
        by_index = {index: name for name, index in content.pairs if type(index) is int}
        if sorted(by_index) != list(range(len(names))):
            raise FolderError(f"{where} must number its {len(names)} classes from 0 without a gap, or hold {wanted}")
        names = [by_index[index] for index in range(len(names))]
    return tuple(names)


@dataclass(frozen=True)
class _Pairs:
    """A JSON object as it stands, whose keys a dict would hold once."""

    pairs: list[tuple[str, Any]]


def write_class_map(path: str, classes: Sequence[str]) -> None:
    """Write the names in the order of their indices; a link stays, what it leads to is written. Raises FolderError."""
    text = json.dumps(list(classes), indent=1) + "\n"
    try:
        replace_file(Path(os.path.realpath(path)), lambda stream: stream.write(text.encode()))
    except OSError as error:
        raise FolderError(
            f"--class-map {path}: {error.strerror}; name a file in a folder that can be written"
        ) from error

"""Which tar files a pattern of --train-shards or --val-shards stands for."""

from __future__ import annotations

import glob
import os
import re
from typing import Any

from data.addresses import is_url, shown, shown_error
from data.folder import FolderError
from data.shard_files import connect

_MOST_FILES = 100_000
_GONE = (404, 410)  # of HTTP
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")


def expand_pattern(pattern: str) -> list[str]:
    """The tar files a shell-like pattern stands for: ``{000..099}``, ``{a,b}``, ``*``, ``?`` and ``[...]``.

    Braces keep their order, what a glob finds is sorted. Raises FolderError where a named file is missing, a pattern
    matches nothing, or the place cannot be listed.
    """
    pattern = pattern.removeprefix("file://")
    if not is_url(pattern) and os.path.isfile(pattern):
        return [pattern]
    found: list[str] = []
    missing: list[str] = []
    named = _expand_braces(pattern)
    for item in named:
        files = _remote_files(item) if is_url(item) else _local_files(os.path.expanduser(item))
        found += files
        if not files:
            missing.append(item)
    if len(missing) == len(named):
        raise FolderError(
            f"no tar file matches {shown(pattern)}: give a pattern such as DIR/train-{{000..099}}.tar or DIR/*.tar"
        )
    if missing:
        raise FolderError(
            f"{len(missing)} of the {len(named)} shards of {shown(pattern)} are missing, first {shown(missing[0])}: add them or change the pattern"
        )
    return list(dict.fromkeys(found))


def _expand_braces(pattern: str) -> list[str]:
    """Every text a pattern's braces stand for; braces that hold neither a list nor a range stay as they are."""
    for braces in _BRACES.finditer(pattern):
        inside = braces[1]
        if numbers := _RANGE.fullmatch(inside):
            first, last = int(numbers[1]), int(numbers[2])
            if abs(last - first) >= _MOST_FILES:
                raise FolderError(f"{shown(pattern)} stands for more than {_MOST_FILES} files: narrow its range")
            padded = any(len(number) > 1 and number[0] == "0" for number in numbers.groups())
            width = max(map(len, numbers.groups())) if padded else 0
            step = 1 if last >= first else -1
            choices = [f"{number:0{width}d}" for number in range(first, last + step, step)]
        elif "," in inside:
            choices = inside.split(",")
        else:
            continue
        texts = []
        for choice in choices:
            texts += _expand_braces(pattern[: braces.start()] + choice + pattern[braces.end() :])
            if len(texts) > _MOST_FILES:
                raise FolderError(f"{shown(pattern)} stands for more than {_MOST_FILES} files: narrow its range")
        return texts
    return [pattern]


def _local_files(path: str) -> list[str]:
    if os.path.isdir(path):
        raise FolderError(f"{path} is a folder: name its tar files, such as {os.path.join(path, '*.tar')}")
    if os.path.isfile(path):
        return [path]
    return sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))


def _remote_files(url: str) -> list[str]:
    # A question mark starts the query of a web address.
    magic = "*[" if url.startswith(("http://", "https://")) else "*[?"
    fs, path = connect(url)
    try:
        if not any(sign in url for sign in magic):
            return [url] if _exists(fs, path) else []
        if url.endswith(path):
            # What stands before the path: a host that some drivers leave out of it, a cache in front of the place.
            before = url[: -len(path)]
            return sorted(before + name for name in fs.glob(path))
        return sorted(fs.unstrip_protocol(name) for name in fs.glob(path))
    except Exception as error:  # each driver has errors of its own
        raise FolderError(
            f"cannot list {shown(url)} ({shown_error(error)}): check address, access and network"
        ) from error


def _exists(fs: Any, path: str) -> bool:
    """Raises what the driver raises. Not its ``exists``: to some, a server in trouble holds no files."""
    try:
        fs.info(path)
    except FileNotFoundError as error:  # the HTTP driver's name for all that goes wrong, but it keeps the cause
        cause = error.__cause__
        if cause is None or isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) in _GONE:
            return False
        raise cause from None
    return True

"""Tar files (shards) -> an index of their images, read in place: nothing is unpacked.

Members are ``class/name.jpg``, or ``key.jpg`` with ``key.cls``, which holds the class's index or name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from data.addresses import shown, shown_error
from data.folder import SUFFIXES, FolderError
from data.index import Names
from data.shard_cache import load_table, save_table
from data.shard_files import ShardReader, expand_pattern, open_shard, size_and_mark
from data.tar_table import TarTable, read_table

_LISTED_AT_ONCE = 8  # shards; more would wait for the network or the disk anyway
_NUMBER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class ShardIndex:
    """Images of one split, sorted by class then member as a folder's are.

    ``labels``: (N,) int32, indices into ``classes``; ``shards``: (N,) int32, the number of the tar file;
    ``offsets`` and ``sizes``: (N,) int64, bytes.
    """

    classes: tuple[str, ...]
    labels: np.ndarray
    members: Names
    shards: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    reader: ShardReader
    ignored: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def describe(self) -> str:
        left_out = ", ".join(f"{count} {kind}" for kind, count in sorted(self.ignored.items()))
        urls = self.reader.urls
        place = f"{len(urls)} tar files from {shown(urls[0])} on" if len(urls) > 1 else shown(urls[0])
        counts = f"{len(self)} images, {len(self.classes)} classes in {place}"
        return counts + (f" (left out: {left_out})" if left_out else "")

    def name(self, index: int) -> str:
        return f"{shown(self.reader.urls[self.shards[index]])}!{self.members[index]}"

    def read(self, index: int) -> bytes:
        return self.reader.read(int(self.shards[index]), int(self.offsets[index]), int(self.sizes[index]))


def open_shards(train_pattern: str, val_pattern: str, rescan: bool = False) -> tuple[ShardIndex, ShardIndex]:
    """Index the shards of both splits; val's labels follow train's class names.

    A pattern is a path or an fsspec URL with ``{000..099}``, ``{a,b}``, ``*`` and ``?``. The table of each tar file is
    kept in the user's cache folder; ``rescan`` reads all headers anew. Raises FolderError.
    """
    train = _open_split(train_pattern, None, rescan)
    return train, _open_split(val_pattern, train.classes, rescan)


def _open_split(pattern: str, known: tuple[str, ...] | None, rescan: bool) -> ShardIndex:
    urls = expand_pattern(pattern)
    with ThreadPoolExecutor(min(_LISTED_AT_ONCE, len(urls))) as threads:
        tables = list(threads.map(lambda url: _table_of(url, rescan), urls))
    ignored: Counter[str] = Counter()
    for table in tables:
        ignored.update(table.ignored)
    if not sum(map(len, tables)):
        raise FolderError(
            f"no image in {shown(pattern)}: members must be class/name or key with key.cls, and end in {', '.join(sorted(SUFFIXES))}"
        )
    numbered = all(t.from_cls and all(map(_NUMBER.fullmatch, t.classes)) for t in tables if len(t))
    found = [tuple(str(int(name)) if numbered else name for name in table.classes) for table in tables]
    classes = known if known is not None else _ordered({name for names in found for name in names}, numbered)
    if known is None:
        _check_depth(pattern, tables, classes)
    at = {name: label for label, name in enumerate(classes)}
    for url, names in zip(urls, found, strict=True):
        unknown = next((name for name in names if name not in at), None)
        if unknown is not None:
            raise FolderError(
                f"{shown(url)} has class {unknown!r}, which the training shards have not: rename or remove it"
            )
    labels = [
        np.array([at[name] for name in names], dtype=np.int32)[t.labels]
        for names, t in zip(found, tables, strict=True)
        if len(t)
    ]
    return _sorted_index(classes, np.concatenate(labels), tables, ShardReader(urls), dict(ignored))


def _table_of(url: str, rescan: bool) -> TarTable:
    """A shard's table, from the cache where it is still true."""
    size, mark = size_and_mark(url)
    table = None if rescan else load_table(url, size, mark)
    if table is None:
        try:
            with open_shard(url, size) as file:
                table = read_table(file, shown(url), size)
        except FolderError:
            raise
        except Exception as error:  # OSError, and what drivers of remote places raise
            raise FolderError(
                f"cannot read {shown(url)} ({shown_error(error)}): check access, disk and network"
            ) from error
        save_table(url, size, mark, table)
    return table


def _ordered(names: set[str], numbered: bool) -> tuple[str, ...]:
    return tuple(sorted(names, key=int) if numbered else sorted(names))


def _check_depth(pattern: str, tables: Sequence[TarTable], classes: tuple[str, ...]) -> None:
    """A tar of the folder above the class folders would make one class of everything."""
    if len(classes) > 1 or any(table.from_cls for table in tables if len(table)):
        return
    if all(table.names[index].count("/") > 1 for table in tables for index in range(len(table))):
        raise FolderError(
            f"all images of {shown(pattern)} lie in folders below {classes[0]}/: members must begin with the class's folder"
        )


def _sorted_index(
    classes: tuple[str, ...],
    labels: np.ndarray,
    tables: Sequence[TarTable],
    reader: ShardReader,
    ignored: dict[str, int],
) -> ShardIndex:
    """Everything in the order of a folder: by class, then member; equal members by shard."""
    members = [table.names[index] for table in tables for index in range(len(table))]
    keys = list(map(_walk_key, members))
    by_member = np.array(sorted(range(len(members)), key=keys.__getitem__), dtype=np.int64)
    order = by_member[np.argsort(labels[by_member], kind="stable")]
    shards = np.repeat(np.arange(len(tables), dtype=np.int32), [len(table) for table in tables])
    return ShardIndex(
        classes,
        labels[order],
        Names(members[index] for index in order),
        shards[order],
        np.concatenate([table.offsets for table in tables])[order],
        np.concatenate([table.sizes for table in tables])[order],
        reader,
        ignored,
    )


def _walk_key(member: str) -> str:
    """Sorts members as a walk through folders meets them: the files of a folder before its subfolders."""
    *folders, name = member.split("/")
    return "".join(f"\x01{folder}\x00" for folder in folders) + "\x00" + name

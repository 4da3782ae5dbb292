"""Tar files (shards) -> an index of their images, read in place: nothing is unpacked.

Members are ``class/name.jpg``, or ``key.jpg`` with ``key.cls``, which holds the class's index or name. Indices stay as they
are given: those without an image are classes too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data.addresses import shown, shown_error
from data.folder import SUFFIXES, FolderError
from data.index import Names, contents_of
from data.labels import read_class_map, write_class_map
from data.shard_cache import load_table, save_table
from data.shard_classes import ShardClasses
from data.shard_files import ShardReader, open_shard, size_and_mark
from data.shard_pattern import expand_pattern
from data.tar_table import TarTable, read_table

_LISTED_AT_ONCE = 8  # shards; more would wait for the network or the disk anyway


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
        urls, bare = self.reader.urls, len(self.classes) - len(np.unique(self.labels))
        place = f"{len(urls)} tar files from {shown(urls[0])} on" if len(urls) > 1 else shown(urls[0])
        unused = f", {bare} of them without an image," if bare else ""
        counts = f"{len(self)} images, {len(self.classes)} classes{unused} in {place}"
        return counts + (f" (left out: {left_out})" if left_out else "")

    def contents(self) -> dict[str, Any]:
        return contents_of(self.labels, self.members)

    def name(self, index: int) -> str:
        return f"{shown(self.reader.urls[self.shards[index]])}!{self.members[index]}"

    def read(self, index: int) -> bytes:
        return self.reader.read(int(self.shards[index]), int(self.offsets[index]), int(self.sizes[index]))


def open_shards(
    train_pattern: str, val_pattern: str, rescan: bool = False, class_map: str | None = None
) -> tuple[ShardIndex, ShardIndex]:
    """Index the shards of both splits; val's labels follow train's class names.

    A pattern is a path or an fsspec URL with ``{000..099}``, ``{a,b}``, ``*`` and ``?``. The table of each tar file is
    kept in the user's cache folder; ``rescan`` reads all headers anew. ``class_map``: as for a folder; numbers in
    ``.cls`` members are indices into its names. Raises FolderError.
    """
    pinned = read_class_map(class_map) if class_map else None
    known = ShardClasses(pinned, f"--class-map {class_map} has", pinned=True) if pinned else None
    urls, tables = _tables_of(train_pattern, rescan)
    classes = known or ShardClasses.of_tables(urls, tables)
    _check_depth(train_pattern, tables)
    train = _sorted_index(classes, urls, tables)
    val = _sorted_index(known or classes.filled(train.labels), *_tables_of(val_pattern, rescan))
    if class_map and not pinned:
        write_class_map(class_map, train.classes)
    return train, val


def _tables_of(pattern: str, rescan: bool) -> tuple[list[str], list[TarTable]]:
    """The tar files of a pattern and what they hold."""
    urls = expand_pattern(pattern)
    with ThreadPoolExecutor(min(_LISTED_AT_ONCE, len(urls))) as threads:
        tables = list(threads.map(lambda url: _table_of(url, rescan), urls))
    if not sum(map(len, tables)):
        raise FolderError(
            f"no image in {shown(pattern)}: members must be class/name or key with key.cls, and end in {', '.join(sorted(SUFFIXES))}"
        )
    return urls, tables


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


def _check_depth(pattern: str, tables: Sequence[TarTable]) -> None:
    """A tar of the folder above the class folders would make one class of everything."""
    classes = {name for table in tables for name in table.classes}
    if len(classes) > 1 or any(table.from_cls for table in tables if len(table)):
        return
    if all(table.names[index].count("/") > 1 for table in tables for index in range(len(table))):
        raise FolderError(
            f"all images of {shown(pattern)} lie in folders below {classes.pop()}/: members must begin with the class's folder"
        )


def _sorted_index(classes: ShardClasses, urls: Sequence[str], tables: Sequence[TarTable]) -> ShardIndex:
    """Everything in the order of a folder: by class, then member; equal members by shard."""
    labels = np.concatenate([classes.labels(url, table) for url, table in zip(urls, tables, strict=True)])
    members = [table.names[index] for table in tables for index in range(len(table))]
    keys = list(map(_walk_key, members))
    by_member = np.array(sorted(range(len(members)), key=keys.__getitem__), dtype=np.int64)
    order = by_member[np.argsort(labels[by_member], kind="stable")]
    shards = np.repeat(np.arange(len(tables), dtype=np.int32), [len(table) for table in tables])
    ignored: Counter[str] = Counter()
    for table in tables:
        ignored.update(table.ignored)
    return ShardIndex(
        classes.names,
        labels[order],
        Names(members[index] for index in order),
        shards[order],
        np.concatenate([table.offsets for table in tables])[order],
        np.concatenate([table.sizes for table in tables])[order],
        ShardReader(urls),
        dict(ignored),
    )


def _walk_key(member: str) -> str:
    """Sorts members as a walk through folders meets them: the files of a folder before its subfolders."""
    *folders, name = member.split("/")
    return "".join(f"\x01{folder}\x00" for folder in folders) + "\x00" + name

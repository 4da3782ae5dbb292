"""Which index a class named in a tar file has: its own number, its name's place, or what a class map says."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from data.addresses import shown
from data.listing import FolderError
from data.tar_table import TarTable

MOST_CLASSES = 100_000  # more would be no numbering from 0
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class ShardClasses:
    """``names`` in the order of their indices; ``owner`` is what a person calls the place that has them.

    A number in a ``.cls`` member is an index where a map has pinned the names, and else a name as any other.
    """

    def __init__(self, names: Sequence[str], owner: str, pinned: bool = False) -> None:
        self.names = tuple(names)
        self._owner = owner
        self._at = {name: label for label, name in enumerate(names)}
        self._by_index = pinned and not any(map(_NUMBER.fullmatch, names))

    @classmethod
    def of_tables(cls, urls: Sequence[str], tables: Sequence[TarTable]) -> ShardClasses:
        """Those of the training shards: sorted names, or all indices up to the largest, some maybe without an image.

        Raises FolderError for an index that cannot be one.
        """
        owner, found = "the training shards have", {name for table in tables for name in table.classes}
        if not all(t.from_cls and all(map(_NUMBER.fullmatch, t.classes)) for t in tables if len(t)):
            return cls(sorted(found), owner)
        for url, table in zip(urls, tables, strict=True):
            wrong = [name for name in table.classes if not 0 <= int(name) < MOST_CLASSES]
            if wrong:
                raise FolderError(
                    f"{shown(url)} has class index {wrong[0]}, and indices go from 0 to {MOST_CLASSES - 1} at the most: number "
                    "the classes from 0, or write their names into the .cls members"
                )
        return cls([str(label) for label in range(max(map(int, found)) + 1)], owner)

    def labels(self, url: str, table: TarTable) -> np.ndarray:
        """The index (N,) int32 of each image of a shard. Raises FolderError for a class that is not among these."""
        labels = [self._label(name, table.from_cls) for name in table.classes]
        if -1 in labels:
            name = table.classes[labels.index(-1)]
            raise FolderError(f"{shown(url)} has class {name!r}, which {self._owner} not: rename or remove it")
        return np.array(labels, dtype=np.int32)[table.labels]

    def filled(self, labels: np.ndarray) -> ShardClasses:
        """The same indices, of which only those among ``labels`` have a name."""
        known = ShardClasses(self.names, self._owner)
        known._at = {self.names[label]: label for label in np.unique(labels).tolist()}
        return known

    def _label(self, name: str, from_cls: bool) -> int:
        if name in self._at or not (from_cls and _NUMBER.fullmatch(name)):
            return self._at.get(name, -1)
        if self._by_index:
            return int(name) if 0 <= int(name) < len(self.names) else -1
        return self._at.get(str(int(name)), -1)

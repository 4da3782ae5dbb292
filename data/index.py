"""What every source of encoded images offers: classes, labels, and the bytes of a sample by its number."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np


class Names:
    """Strings in one bytes buffer with offsets: loader processes share its pages, where a list of
    Python strings would be copied page by page as reference counts change.

    ``Names(strings)``; ``names[i]``; surrogate escapes survive (file names need not be UTF-8).
    """

    def __init__(self, strings: Iterable[str]) -> None:
        encoded = [string.encode("utf-8", "surrogateescape") for string in strings]
        self._offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
        np.cumsum([len(item) for item in encoded], out=self._offsets[1:])
        self._buffer = np.frombuffer(b"".join(encoded), dtype=np.uint8)

    @classmethod
    def from_arrays(cls, buffer: np.ndarray, offsets: np.ndarray) -> Names:
        """The strings whose ``arrays()`` these are. Raises ValueError where the two do not belong together."""
        fits = buffer.dtype == np.uint8 and offsets.dtype == np.int64 and buffer.ndim == offsets.ndim == 1
        if not (
            fits and len(offsets) and offsets[0] == 0 and offsets[-1] == len(buffer) and (np.diff(offsets) >= 0).all()
        ):
            raise ValueError("these offsets are not the buffer's")
        names = cls(())
        names._buffer, names._offsets = buffer, offsets
        return names

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of all strings (B,) uint8 and where each starts and the last one ends (N + 1,) int64."""
        return self._buffer, self._offsets

    def since(self, first: int) -> Names:
        """The strings from number ``first`` on; shares their bytes."""
        start = self._offsets[first]
        return Names.from_arrays(self._buffer[start:], self._offsets[first:] - start) if first else self

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> str:
        start, end = self._offsets[index], self._offsets[index + 1]
        return self._buffer[start:end].tobytes().decode("utf-8", "surrogateescape")


class SampleIndex(Protocol):
    """The samples of one split. ``labels``: (N,) int32, indices into ``classes``."""

    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def labels(self) -> np.ndarray: ...
    def __len__(self) -> int: ...
    def describe(self) -> str:
        """Counts for the start's line: images, classes, what was left out."""
        ...

    def name(self, index: int) -> str:
        """Where a person finds the sample: a file's path, or ``shard.tar!member``."""
        ...

    def read(self, index: int) -> bytes:
        """The encoded image. Raises OSError."""
        ...


class OrderedIndex(SampleIndex, Protocol):
    """One to train from: a place in an epoch means the same samples only while its contents are the same."""

    def contents(self) -> dict[str, Any]:
        """Number of images, and marks that change with the labels or the names or their order."""
        ...


def contents_of(labels: np.ndarray, names: Names) -> dict[str, Any]:
    """An index's ``contents``; ``names``: below the split's folder, as in the shards made of it."""
    arrays = {"labels": (labels,), "names": names.arrays()}
    marks = {key: hashlib.blake2b(digest_size=16) for key in arrays}
    for key, parts in arrays.items():
        for part in parts:
            marks[key].update(np.ascontiguousarray(part).data)
    return {"images": len(labels), **{key: mark.hexdigest() for key, mark in marks.items()}}

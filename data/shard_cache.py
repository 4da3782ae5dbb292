"""The tables of tar files, kept in the user's cache folder so that a start need not walk all headers again.

One file a shard, named after its URL; it counts only while size and mark of the shard are the same.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from data.addresses import is_url
from data.cache_files import keep_arrays, kept_arrays
from data.index import Names
from data.tar_table import TarTable

_VERSION = 2
_KIND = "shards"


def load_table(url: str, size: int, mark: str) -> TarTable | None:
    """The table kept for a shard of this size and mark; None where there is none that can be used."""
    kept = kept_arrays(_KIND, _key(url)) if mark else None
    if kept is None:
        return None
    try:
        about, arrays = kept
        if [about["version"], about["size"], about["mark"]] != [_VERSION, size, mark]:
            return None
        table = _restored(about, arrays)
    except (LookupError, TypeError, ValueError, AttributeError):  # foreign content
        return None
    return table if _is_sound(table, size) else None


def save_table(url: str, size: int, mark: str, table: TarTable) -> None:
    """Keep a table; nothing is kept without a mark."""
    if not mark:
        return
    about = {"version": _VERSION, "size": size, "mark": mark, "classes": table.classes}
    about |= {"from_cls": table.from_cls, "ignored": table.ignored}
    names, name_offsets = table.names.arrays()
    arrays = {"names": names, "name_offsets": name_offsets}
    arrays |= {"offsets": table.offsets, "sizes": table.sizes, "labels": table.labels}
    keep_arrays(_KIND, _key(url), about, arrays)


def _key(url: str) -> str:
    return url if is_url(url) else os.path.abspath(url)


def _restored(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> TarTable:
    return TarTable(
        Names.from_arrays(arrays["names"], arrays["name_offsets"]),
        arrays["offsets"],
        arrays["sizes"],
        tuple(map(str, about["classes"])),
        arrays["labels"],
        bool(about["from_cls"]),
        {str(kind): int(count) for kind, count in about["ignored"].items()},
    )


def _is_sound(table: TarTable, size: int) -> bool:
    columns = ((table.offsets, np.int64), (table.sizes, np.int64), (table.labels, np.int32))
    if any(a.shape != (len(table),) or a.dtype != kind for a, kind in columns):
        return False
    within = (table.offsets >= 0) & (table.sizes >= 0) & (table.offsets <= size - table.sizes)
    return bool(np.all(within & (table.labels >= 0) & (table.labels < len(table.classes))))

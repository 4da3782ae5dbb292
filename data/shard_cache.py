"""The tables of tar files, kept in the user's cache folder so that a start need not walk all headers again.

One file a shard, named after its URL; it counts only while size and mark of the shard are the same. Nothing in it is
executed (JSON and plain arrays), and a damaged or foreign one is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

import numpy as np

from data.index import Names
from data.shard_files import is_url
from data.tar_table import TarTable

_VERSION = 1


def cache_folder() -> Path:
    """Where tables are kept: below XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "channels-last-imagenet-training", "shards")


def load_table(url: str, size: int, mark: str) -> TarTable | None:
    """The table kept for a shard of this size and mark; None where there is none that can be used."""
    try:
        with np.load(_path(url), allow_pickle=False) as stored:
            about = json.loads(stored["about"].tobytes())
            if [about["version"], about["size"], about["mark"]] != [_VERSION, size, mark] or not mark:
                return None
            names = stored["names"].tobytes().decode("utf-8", "surrogateescape").split("\0") if about["count"] else []
            table = TarTable(
                Names(names),
                stored["offsets"],
                stored["sizes"],
                tuple(map(str, about["classes"])),
                stored["labels"],
                bool(about["from_cls"]),
                {str(kind): int(count) for kind, count in about["ignored"].items()},
            )
    except Exception:  # a damaged zip raises nearly anything
        return None
    return table if _is_sound(table, about["count"], size) else None


def save_table(url: str, size: int, mark: str, table: TarTable) -> None:
    """Keep a table; without a mark, or where the cache folder cannot be written, nothing is kept."""
    if not mark:
        return
    about = {"version": _VERSION, "size": size, "mark": mark, "count": len(table), "classes": table.classes}
    about |= {"from_cls": table.from_cls, "ignored": table.ignored}
    names = "\0".join(table.names[index] for index in range(len(table)))
    path = _path(url)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".unfinished-")
        try:
            with open(descriptor, "wb") as file:
                np.savez(
                    file,
                    about=np.frombuffer(json.dumps(about).encode(), dtype=np.uint8),
                    names=np.frombuffer(names.encode("utf-8", "surrogateescape"), dtype=np.uint8),
                    offsets=table.offsets,
                    sizes=table.sizes,
                    labels=table.labels,
                )
            os.replace(unfinished, path)
        except BaseException:
            os.unlink(unfinished)
            raise


def _path(url: str) -> Path:
    key = url if is_url(url) else os.path.abspath(url)
    return cache_folder() / f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:40]}.npz"


def _is_sound(table: TarTable, count: int, size: int) -> bool:
    columns = ((table.offsets, np.int64), (table.sizes, np.int64), (table.labels, np.int32))
    if len(table.names) != count or any(a.shape != (count,) or a.dtype != kind for a, kind in columns):
        return False
    within = (table.offsets >= 0) & (table.sizes >= 0) & (table.offsets <= size - table.sizes)
    return bool(np.all(within & (table.labels >= 0) & (table.labels < len(table.classes))))

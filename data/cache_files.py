"""Files in the user's cache folder: arrays with a few facts beside them, never half there, and no reason to fail.

Nothing in one is executed (JSON and plain arrays). A damaged or foreign one is as good as none, and where none can be
written the next start does its work again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_FACTS = "facts"
# A change within the clock tick of a look leaves no trace in a file's times; ticks are up to 2 s (FAT).
UNSETTLED_NS = 2_000_000_000


def cache_path(kind: str, key: str) -> Path:
    """Where what belongs to ``key``, a path or URL, is kept: below XDG_CACHE_HOME or ~/.cache.

    Raises RuntimeError where there is no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")  # a relative one is to be ignored, says the standard
    home = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    name = hashlib.sha256(os.fsencode(key)).hexdigest()[:32]
    return home / "channels-last-imagenet-training" / kind / f"{name}.npz"


def is_settled(changed_ns: int, seen_ns: int | None = None) -> bool:
    """Whether what last changed at ``changed_ns`` must get another time by its next change after ``seen_ns`` (now)."""
    return changed_ns < (time.time_ns() if seen_ns is None else seen_ns) - UNSETTLED_NS


def keep_arrays(kind: str, key: str, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Keep ``facts`` (plain types) and ``arrays`` for ``key``; nothing happens where they cannot be written."""
    content = {**arrays, _FACTS: np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8)}
    try:
        path = cache_path(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, lambda stream: np.savez(stream, **content))  # type: ignore[arg-type]
    except (OSError, RuntimeError):  # no home folder, a full or read-only disk
        pass


def kept_arrays(kind: str, key: str) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """The facts and arrays kept for ``key``; None where there are none that can be read."""
    try:
        with np.load(cache_path(kind, key), allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in kept.files}
        return json.loads(arrays.pop(_FACTS).tobytes()), arrays
    except Exception:  # a damaged file raises nearly anything: zipfile, zlib, json and numpy have errors of their own
        return None


def replace_file(target: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file that is never half there, whoever else writes it at the same time. Raises OSError."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as stream:
            write(stream)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

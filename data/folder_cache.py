"""Listings kept in the user's cache folder, so that the next start only asks whether a folder has changed.

A file a split, named by its real path. Whatever is wrong with one is answered by listing anew: a run never fails,
and never trains on something else, for its cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data.index import Names
from data.listing import SUFFIXES, Listing, change_times, list_split

FORMAT = 1
# A change within the clock tick of a listing leaves no trace in a folder's time; ticks are up to 2 s (FAT).
UNSETTLED_NS = 2_000_000_000


def load_or_list(folder: str, rescan: bool = False) -> Listing:
    """The listing kept for ``folder`` if none of its folders has changed since, else a new one, which is then kept.

    ``rescan`` does not look for a kept one. Raises FolderError where a folder cannot be read.
    """
    kept = None if rescan else load(folder)
    return kept or list_and_keep(folder)


def list_and_keep(folder: str) -> Listing:
    """List ``folder`` and keep the listing for later starts. Raises FolderError."""
    begun = time.time_ns()
    listing = list_split(folder)
    if int(listing.changed.max()) < begun - UNSETTLED_NS:
        _save(folder, listing)
    return listing


def load(folder: str) -> Listing | None:
    """The listing kept for ``folder``; None if there is none, or if it is damaged or no longer true."""
    try:
        with np.load(cache_file(folder), allow_pickle=False) as kept:
            facts = json.loads(kept["facts"].tobytes())
            if facts["format"] != FORMAT or facts["suffixes"] != sorted(SUFFIXES) or facts["folder"] != _real(folder):
                return None
            listing = Listing(
                classes=tuple(facts["classes"]),
                files=Names.from_arrays(kept["file_bytes"], kept["file_offsets"]),
                owners=kept["owners"],
                ignored=facts["ignored"],
                loose=facts["loose"],
                walked=Names.from_arrays(kept["walked_bytes"], kept["walked_offsets"]),
                changed=kept["changed"],
            )
        return listing if _is_whole(listing) and _is_true(folder, listing) else None
    except (
        Exception
    ):  # a damaged file may raise nearly anything: zipfile, zlib, json and numpy have errors of their own
        return None


def cache_file(folder: str) -> Path:
    """Where the listing of ``folder`` is kept."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    key = hashlib.sha256(os.fsencode(_real(folder))).hexdigest()[:32]
    return home / "channels-last-imagenet-training" / "index" / f"{key}.npz"


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


def _real(folder: str) -> str:
    return os.path.realpath(folder)


def _is_whole(listing: Listing) -> bool:
    owners, changed = listing.owners, listing.changed
    shapes = owners.shape == (len(listing.files),) and changed.shape == (len(listing.walked), 2) and len(changed) > 0
    in_range = not len(owners) or (owners.min() >= -1 and owners.max() < len(listing.classes))
    return shapes and owners.dtype == np.int32 and changed.dtype == np.int64 and bool(in_range)


def _is_true(folder: str, listing: Listing) -> bool:
    """Whether every folder that was walked is as it was."""
    return all(
        change_times(os.path.join(folder, listing.walked[index])) == (content, status)
        for index, (content, status) in enumerate(listing.changed.tolist())
    )


def _save(folder: str, listing: Listing) -> None:
    facts = {
        "format": FORMAT,
        "suffixes": sorted(SUFFIXES),
        "folder": _real(folder),
        "classes": listing.classes,
        "ignored": listing.ignored,
        "loose": listing.loose,
    }
    (file_bytes, file_offsets), (walked_bytes, walked_offsets) = listing.files.arrays(), listing.walked.arrays()
    arrays = {
        "facts": np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
        "file_bytes": file_bytes,
        "file_offsets": file_offsets,
        "owners": listing.owners,
        "walked_bytes": walked_bytes,
        "walked_offsets": walked_offsets,
        "changed": listing.changed,
    }
    try:
        target = cache_file(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, lambda stream: np.savez(stream, **arrays))  # type: ignore[arg-type]
    except (OSError, RuntimeError):  # no home folder, a full or read-only disk: the next start lists again
        pass

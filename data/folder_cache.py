"""Listings kept in the user's cache folder, so that the next start only asks whether a folder has changed.

A file a split, named by its real path. Whatever is wrong with one is answered by listing anew: a run never fails,
and never trains on something else, for its cache.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from data.cache_files import cache_path, is_settled, keep_arrays, kept_arrays
from data.index import Names
from data.listing import BROKEN, SUFFIXES, Listing, change_times, list_split

FORMAT = 2
_KIND = "index"


def load_or_list(folder: str, rescan: bool = False) -> Listing:
    """The listing kept for ``folder`` if none of its folders has changed since, else a new one, which is then kept.

    ``rescan`` does not look for a kept one. Raises FolderError where a folder cannot be read.
    """
    kept = None if rescan else load(folder)
    return kept or list_and_keep(folder)


def list_and_keep(folder: str) -> Listing:
    """List ``folder`` and keep the listing for later starts, unless the times of folders would not show that it
    is no longer true. Raises FolderError."""
    begun = time.time_ns()
    listing = list_split(folder)
    # What a broken link leads to may be back any time.
    broken = BROKEN in listing.ignored or BROKEN in listing.loose
    if is_settled(int(listing.changed.max()), begun) and not broken:
        _save(folder, listing)
    return listing


def load(folder: str) -> Listing | None:
    """The listing kept for ``folder``; None if there is none, or if it is damaged or no longer true."""
    kept = kept_arrays(_KIND, _real(folder))
    if kept is None:
        return None
    try:
        listing = _restored(folder, *kept)
        return listing if listing and _is_whole(listing) and _is_true(folder, listing) else None
    except (LookupError, TypeError, ValueError, OSError):  # foreign content, or a folder that is gone
        return None


def cache_file(folder: str) -> Path:
    """Where the listing of ``folder`` is kept."""
    return cache_path(_KIND, _real(folder))


def _real(folder: str) -> str:
    return os.path.realpath(folder)


def _restored(folder: str, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Listing | None:
    if facts["format"] != FORMAT or facts["suffixes"] != sorted(SUFFIXES) or facts["folder"] != _real(folder):
        return None
    return Listing(
        classes=tuple(facts["classes"]),
        files=Names.from_arrays(arrays["file_bytes"], arrays["file_offsets"]),
        owners=arrays["owners"],
        ignored=facts["ignored"],
        loose=facts["loose"],
        walked=Names.from_arrays(arrays["walked_bytes"], arrays["walked_offsets"]),
        changed=arrays["changed"],
    )


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
        "file_bytes": file_bytes,
        "file_offsets": file_offsets,
        "owners": listing.owners,
        "walked_bytes": walked_bytes,
        "walked_offsets": walked_offsets,
        "changed": listing.changed,
    }
    keep_arrays(_KIND, _real(folder), facts, arrays)

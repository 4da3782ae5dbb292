"""Keep freed memory in the process: on a CPU half of a training step can go to giving it back.

glibc maps each large tensor anew and returns it at once, so that every step faults the same pages
in again. ``retain`` turns both off (``mallopt``): faster, at the price of a more fragmented heap.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
# Retained, a heap was seen to need up to this share of the expected memory (resnet50, batches of 16 to 100).
HEADROOM = 1.7
_OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")


def choose_heap(asked: str, device_type: str, expected: int | None, free: int | None) -> tuple[str, str]:
    """``retain`` or ``default``, and why, for ``--cpu-heap``'s auto, retain or default.

    ``expected`` and ``free`` in bytes, None where unknown.
    """
    if device_type != "cpu":
        return "default", "the device is no CPU"
    if asked == "default":
        return "default", "as asked"
    obstacle = _obstacle(os.environ)
    if obstacle:
        return "default", obstacle
    if asked == "retain":
        return "retain", "as asked"
    if expected is None or free is None:
        return "default", "the memory this run needs is unknown"
    figures = f"{HEADROOM:g} x {expected / 2**30:.1f} GiB expected, {free / 2**30:.1f} GiB free"
    return ("retain" if HEADROOM * expected <= free else "default"), figures


def retain_heap() -> bool:
    """Never map, never trim, from the next allocation on; False where the C library knows no such thing."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return mallopt(_M_MMAP_MAX, 0) == 1 and mallopt(_M_TRIM_THRESHOLD, -1) == 1


def _obstacle(environ: Mapping[str, str]) -> str | None:
    """Why glibc's settings are not ours to make here, or None."""
    try:
        library = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        library = ""
    if not library.startswith("glibc"):
        return "the C library is not glibc"
    preloaded = environ.get("LD_PRELOAD", "")
    other = next((name for name in _OTHER_ALLOCATORS if name in preloaded), None)
    if other:
        return f"{other} is preloaded"
    if "glibc.malloc" in environ.get("GLIBC_TUNABLES", "") or any(key.startswith("MALLOC_M") for key in environ):
        return "the environment sets glibc's malloc"
    return None

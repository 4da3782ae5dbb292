"""Keep freed memory in the process: on a CPU a quarter of a training step can go to giving it back.

glibc maps each large tensor anew and returns it at once, so that every step faults the same pages
in again. ``retain`` turns both off (``mallopt``): faster, at the price of a more fragmented heap.
``hugepages`` leaves glibc alone and has torch ask for transparent huge pages: fewer faults, no more
memory, a part of the gain.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
# Retained, a heap was seen to need up to this share of the expected memory (resnet50, batches of 16 to 100).
HEADROOM = 1.7
# torch's CPU allocator reads it once, at its first allocation, and then advises the kernel (MADV_HUGEPAGE).
_THP_VARIABLE = "THP_MEM_ALLOC_ENABLE"
_THP_SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"
_OTHER_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")


def choose_heap(asked: str, device_type: str, expected: int | None, free: int | None) -> tuple[str, str]:
    """``retain``, ``hugepages`` or ``default``, and why, for what ``--cpu-heap`` asks.

    ``expected`` and ``free`` in bytes, None where unknown.
    """
    if device_type != "cpu":
        return "default", "the device is no CPU"
    if asked == "default":
        return "default", "as asked"
    if asked == "hugepages":
        if not _kernel_has_huge_pages():
            return "default", "the system grants no huge pages here"
        if not huge_pages_in_use():
            return "default", "torch was told of huge pages too late: give --cpu-heap hugepages on the command line"
        return "hugepages", "as asked"
    obstacle = _obstacle(os.environ)
    if obstacle:
        return "default", obstacle
    if asked == "retain":
        return "retain", "as asked"
    if expected is None or free is None:
        return "default", "the memory this run needs is unknown"
    figures = f"{HEADROOM:g} x {expected / 2**30:.1f} GiB expected, {free / 2**30:.1f} GiB free"
    if HEADROOM * expected <= free:
        return "retain", figures
    hint = "; --cpu-heap hugepages is faster and takes no more memory" if _kernel_has_huge_pages() else ""
    return "default", figures + hint


def ask_for_huge_pages() -> None:
    """To be called before torch allocates for the first time."""
    os.environ[_THP_VARIABLE] = "1"


def huge_pages_in_use() -> bool:
    """Whether torch advises huge pages for a large tensor, read off the kernel's own flags of its memory (Linux)."""
    import torch

    large = torch.empty(1 << 25, dtype=torch.uint8)
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(bound, 16) for bound in first.split("-"))
            inside = start <= large.data_ptr() < end
        elif inside and first == "VmFlags:":
            return "hg" in rest
    return False


def _kernel_has_huge_pages() -> bool:
    try:
        return "[never]" not in Path(_THP_SETTING).read_text()
    except OSError:
        return False


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

"""What a benchmark runs on: the heap it is started under, and the hardware and versions its result file names."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEAPS = ("default", "retain")
# What `mallopt` does from inside, from outside: no block of its own mapping, nothing given back to the system.
_RETAIN = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=9223372036854775807"
_HEAP_VARIABLES = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX")
_HEAP_ENTERED = "BENCH_HEAP_ENTERED"


def heap_environment(heap: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables of a process whose glibc heap is the ``default`` one or keeps (``retain``) what was freed.

    A C library other than glibc ignores them. What the caller's own variables set for malloc is taken out.
    """
    kept = {key: value for key, value in environ.items() if not key.startswith("MALLOC_")}
    tunables = [item for item in kept.pop("GLIBC_TUNABLES", "").split(":") if item]
    tunables = [item for item in tunables if not item.startswith("glibc.malloc.")]
    tunables += [_RETAIN] if heap == "retain" else []
    return {**kept, **({"GLIBC_TUNABLES": ":".join(tunables)} if tunables else {})}


def enter_heap(heap: str) -> None:
    """Start this very command again under ``heap``, unless it runs so already: glibc reads its tunables at the start."""
    if os.environ.get(_HEAP_ENTERED) != heap:
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**heap_environment(heap), _HEAP_ENTERED: heap})


def describe_machine() -> dict[str, Any]:
    """Hardware, versions and heap variables, as plain types. ``cpu_flags``: all that the kernel names."""
    import torch

    from trainer.distributed import Ranks
    from trainer.snapshot import snapshot

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return {
        **snapshot(device, Ranks()),
        "cpu_flags": _cpu_flags(),
        "platform": platform.platform(),
        "libc": " ".join(platform.libc_ver()),
        "heap_variables": {key: os.environ[key] for key in _HEAP_VARIABLES if key in os.environ},
    }


def _cpu_flags() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return sorted(next(flags, "").split())

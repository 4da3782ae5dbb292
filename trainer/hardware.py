"""What this machine is and has free: cores, CPU features, memory."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

FAST_BF16 = ("avx512_bf16", "amx_bf16")
_WATCHED = ("avx2", "avx512f", *FAST_BF16)


def usable_cores() -> int:
    """Cores this process may run on: affinity and container limits respected."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _read(Path("/sys/fs/cgroup/cpu.max")).split()
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, max(1, int(quota[0]) // int(quota[1])))
    return cores


def default_workers(cores: int, local_world_size: int) -> int:
    """Loader processes of a rank where the user named no number."""
    return max(1, min(4, cores // local_world_size))


def cpu_info(text: str | None = None) -> tuple[str, frozenset[str]]:
    """Model name and the features we care about, from ``/proc/cpuinfo`` text."""
    text = _read(Path("/proc/cpuinfo")) if text is None else text
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    features = frozenset(fields.get("flags", "").split())
    name = fields.get("model name") or platform.processor() or platform.machine()
    return name, features & frozenset(_WATCHED)


def half_precision_notice(opt_level: str, half: torch.dtype, features: frozenset[str]) -> str | None:
    """What half precision means on a CPU with these features: one line, or None."""
    fast = bool(features & set(FAST_BF16))
    if opt_level == "O0":
        if fast:
            return "this CPU has a fast bfloat16 path: --opt-level O1 is worth a try (2.0 times float32 measured on resnet50)"
        return None
    if half is torch.float16:
        return "float16 is slow on every CPU (30 to 40 times bfloat16's time): expect this for a check of numbers, not for speed"
    if not fast:
        return "this CPU has neither AVX512-BF16 nor AMX: bfloat16 is about 14 times slower than float32 on it"
    return None


def free_memory() -> int | None:
    """Bytes that can still be had without swapping, container limit respected; None where unknown."""
    found = []
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    limit, used = _read(Path("/sys/fs/cgroup/memory.max")).strip(), _read(Path("/sys/fs/cgroup/memory.current")).strip()
    if limit.isdigit() and used.isdigit():
        # Files read lately are counted as used, but given up when memory is asked for.
        stat = dict(line.split() for line in _read(Path("/sys/fs/cgroup/memory.stat")).splitlines())
        found.append(int(limit) - int(used) + int(stat.get("inactive_file", 0)))
    return min(found, default=None)


def peak_memory_gib(device: torch.device) -> float:
    """Peak memory so far: allocated on the device, or resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20


def expected_memory(
    model: nn.Module, image_size: int, batch_size: int, activation_share: float, bytes_a_parameter: int
) -> int | None:
    """Bytes that are alive at the peak of a training step of a float32 ``model``: ``bytes_a_parameter`` for weights,
    gradients and state (the last step's gradients live until the forward pass is over), and what the forward pass saves
    (``saved_activations``) with the largest workspace, scaled by ``activation_share`` (0.5 where they will be half precision).

    None for a model that cannot run on the meta device.
    """
    saved = saved_activations(model, image_size)
    if saved is None:
        return None
    total, largest = saved
    state = sum(p.numel() for p in model.parameters()) * bytes_a_parameter
    # The largest workspace: the gradients of the largest activation and of what it was made from, or a
    # convolution's copies of both.
    return int(state + (total + 2 * largest) * activation_share * batch_size)


def saved_activations(model: nn.Module, image_size: int) -> tuple[float, float] | None:
    """Bytes an image that a forward pass of 2 images saves for the backward pass: all of them, the largest one.

    Runs on the meta device in float32: no memory, no random numbers. None for a model that cannot run there.
    """
    import copy

    try:
        twin = copy.deepcopy(model).to("meta", torch.float32).train()
        sizes: dict[int, int] = {}
        # By storage: a linear layer saves a view of its weight.
        own = {tensor.untyped_storage()._cdata for tensor in (*twin.parameters(), *twin.buffers())}
        keep = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                sizes[storage._cdata] = storage.nbytes()
                keep.append(tensor)  # alive, so that no two storages share an address
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), torch.random.fork_rng(devices=[]):
            twin(torch.empty(2, 3, image_size, image_size, device="meta"))
    except Exception:
        return None
    return sum(sizes.values()) / 2, max(sizes.values(), default=0) / 2


def describe_device(device: torch.device) -> dict[str, Any]:
    name, features = cpu_info()
    facts: dict[str, Any] = {
        "device": device.type,
        "cpu": name,
        "cpu_features": sorted(features),
        "cores": usable_cores(),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["gpu_capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return facts


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

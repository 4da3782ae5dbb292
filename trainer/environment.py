"""The device, seeds, threads and backend switches of a run."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from trainer.distributed import Ranks
from trainer.errors import UserError
from trainer.hardware import usable_cores


def resolve_device(name: str, local_rank: int) -> torch.device:
    """``auto`` takes CUDA, then the CPU; raises UserError for a device that is not here."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise UserError("--device cuda: this torch finds no CUDA device; take --device cpu", True)
        if local_rank >= torch.cuda.device_count():
            raise UserError(
                f"local rank {local_rank} has no GPU: this machine has {torch.cuda.device_count()}; start fewer processes",
                True,
            )
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    if name == "mps" and not torch.backends.mps.is_available():
        raise UserError("--device mps: this torch finds no Apple GPU; take --device cpu", True)
    return torch.device(name)


def set_threads(ranks: Ranks, device: torch.device) -> int:
    """On a CPU, usable cores over local ranks, unless the user set OMP_NUM_THREADS; returns the count."""
    if device.type == "cpu" and not _user_set_threads(ranks):
        torch.set_num_threads(max(1, usable_cores() // ranks.local_world_size))
    return torch.get_num_threads()


def _user_set_threads(ranks: Ranks) -> bool:
    value = os.environ.get("OMP_NUM_THREADS")
    if value is None:
        return False
    if value != "1" or "TORCHELASTIC_RUN_ID" not in os.environ or ranks.local_world_size == 1:
        return True
    # torchrun sets it to 1 for its workers; its own start environment tells whether the user did.
    try:
        return b"OMP_NUM_THREADS=" in Path(f"/proc/{os.getppid()}/environ").read_bytes()
    except OSError:
        return False


def seed_everything(seed: int, rank: int = 0) -> None:
    """Seed torch's generators on every device. Ranks differ in dropout, not in the model they build."""
    torch.manual_seed((seed * 1_000_003 + rank) % 2**63)


def set_backends(device: torch.device, deterministic: bool, tf32: bool) -> None:
    """cudnn.benchmark unless ``deterministic`` (then every op must be deterministic or raise); TF32 on CUDA."""
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.deterministic = deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    if device.type == "cuda":
        precision = "tf32" if tf32 else "ieee"
        torch.backends.cuda.matmul.fp32_precision = precision
        torch.backends.cudnn.conv.fp32_precision = precision  # type: ignore[attr-defined]

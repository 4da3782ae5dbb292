"""What ran where, as plain types."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torchvision

from trainer.distributed import Ranks
from trainer.hardware import describe_device


def snapshot(device: torch.device, ranks: Ranks) -> dict[str, Any]:
    """Versions, hardware, git revision and command line, as plain types."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": sys.argv,
        "folder": os.getcwd(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if device.type == "cuda" else None,
        "git_revision": _git_revision(),
        "world_size": ranks.world_size,
        "threads": torch.get_num_threads(),
        **describe_device(device),
    }


def _git_revision() -> str | None:
    here = str(Path(__file__).parent)
    try:
        found = subprocess.run(
            ["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None

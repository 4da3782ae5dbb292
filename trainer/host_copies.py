"""Copies of a run's tensors on the host, in buffers that the next save takes again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class HostCopies:
    """Contiguous copies, floating ones as float32. Each name has one buffer: a copy is good until the next of that name.

    On CUDA the buffers are pinned and the copies are queued behind the step that was queued before them; ``wait``
    returns once they are there, and may be called from another thread.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._buffers: dict[str, Tensor] = {}
        self._copied: Any = None

    @torch.no_grad()
    def take(self, name: str, value: Any) -> Any:
        """A copy of a tensor; any other value as it is."""
        if not isinstance(value, Tensor):
            return value
        dtype = torch.float32 if value.is_floating_point() else value.dtype
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != value.shape or buffer.dtype is not dtype:
            buffer = torch.empty(value.shape, dtype=dtype, pin_memory=self._cuda)
            self._buffers[name] = buffer
        buffer.copy_(value.detach(), non_blocking=self._cuda)
        return buffer

    def mark(self) -> None:
        """All copies of a save are queued."""
        if self._cuda:
            self._copied = torch.cuda.Event()
            self._copied.record()

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()

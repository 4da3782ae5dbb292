"""Copies of a run's tensors on the host, in buffers that the next save takes again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class HostCopies:
    """Copies in the memory format of their tensors, floating ones as float32. Each name has one buffer: a copy is good
    until the next of that name.

    On CUDA the buffers are pinned and the copies are queued behind the step that was queued before them; ``wait``
    returns once they are there, and may be called from another thread.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._buffers: dict[str, Tensor] = {}
        self._asked: list[tuple[Tensor, Tensor]] = []  # buffer and what it is to hold
        self._copied: Any = None

    def take(self, name: str, value: Any) -> Any:
        """Where a tensor's copy will lie once ``copy`` was called; any other value as it is."""
        if not isinstance(value, Tensor):
            return value
        dtype = torch.float32 if value.is_floating_point() else value.dtype
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != value.shape or buffer.dtype is not dtype:
            # Strides stay: the training waits for the copy, and turning channels-last ones round takes three times as long.
            buffer = torch.empty_like(value, dtype=dtype, device="cpu", pin_memory=self._cuda)
            self._buffers[name] = buffer
        self._asked.append((buffer, value.detach()))
        return buffer

    @torch.no_grad()
    def copy(self) -> None:
        """Make all the copies that were asked for; in one call, as most tensors are small."""
        if self._asked:
            buffers, values = zip(*self._asked, strict=True)
            torch._foreach_copy_(buffers, values, non_blocking=self._cuda)
            self._asked.clear()
        if self._cuda:
            self._copied = torch.cuda.Event()
            self._copied.record()

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()


def contiguous(value: Any) -> Any:
    """A content of dicts and lists with every tensor in it contiguous, as files hold them."""
    if isinstance(value, Tensor):
        return value.contiguous()
    if type(value) is dict:
        return {key: contiguous(part) for key, part in value.items()}
    return [contiguous(part) for part in value] if type(value) is list else value

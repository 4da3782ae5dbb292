"""The batch as loader workers write it: one uint8 buffer in channels-last memory, each sample written once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import get_worker_info


class BadImage(NamedTuple):
    """A sample that could not be read."""

    number: int
    name: str
    class_name: str
    reason: str


class HostBatch(NamedTuple):
    """``images`` (N, 3, H, W) uint8 with NHWC strides, ``target`` (N,) int64; ``bad`` samples are in neither."""

    images: Tensor
    target: Tensor
    bad: list[BadImage]


def new_rows(count: int, size: int) -> Tensor:
    """An unwritten (count, size, size, 3) uint8 buffer, in shared memory when called in a loader worker.

    What lies in shared memory goes to the main process as it is; anything else would be copied there.
    """
    shape = (count, size, size, 3)
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(count * size * size * 3)
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


def as_batch(rows: Tensor, labels: list[int], bad: list[BadImage]) -> HostBatch:
    """The first ``len(labels)`` rows as a channels-last view; nothing is copied."""
    return HostBatch(rows[: len(labels)].permute(0, 3, 1, 2), torch.tensor(labels, dtype=torch.int64), bad)

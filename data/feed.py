"""The last stretch of a batch: from host memory to the device, normalised there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Batches = Iterable[tuple[Tensor, Tensor]]
# Images and target on the device, epoch, number of the batch in it -> what the model is to see.
Mix = Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class FeedOptions:
    """What images become on the device; ``mean`` and ``std`` in 0..1."""

    device: torch.device
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: torch.dtype
    memory_format: torch.memory_format


class DeviceFeed:
    """Brings uint8 batches to the device and normalises them there.

    Yields images (N, 3, H, W) in the asked dtype and memory format, and targets (N,) int64; with ``mix``
    whatever that makes of them.
    """

    def __init__(self, batches: Batches, options: FeedOptions, mix: Mix | None = None) -> None:
        self._batches = batches
        self._mix = mix
        self._epoch = self._batch = 0
        self._options = options
        self._mean = torch.tensor(options.mean, device=options.device).mul_(255).view(1, -1, 1, 1)
        self._scale = torch.tensor(options.std, device=options.device).mul_(255).reciprocal_().view(1, -1, 1, 1)

    def start(self, epoch: int, batch: int) -> None:
        """Number the next batch: it decides what mixing draws."""
        self._epoch, self._batch = epoch, batch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        on_cuda = self._options.device.type == "cuda"
        return self._on_a_side_stream() if on_cuda else map(self._to_device, self._batches)

    def _on_a_side_stream(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Copy and normalise batch k + 1 while the device still trains on batch k, which the host has only queued."""
        stream = torch.cuda.Stream(self._options.device)
        for batch in self._batches:
            with torch.cuda.stream(stream):
                images, target = self._to_device(batch)
            current = torch.cuda.current_stream(self._options.device)
            current.wait_stream(stream)
            # Made on the side stream, used on this one: their memory must not be handed out before that is over.
            images.record_stream(current)
            target.record_stream(current)
            yield images, target

    def _to_device(self, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        images, target = self._normalise(batch[0]), batch[1].to(self._options.device, non_blocking=True)
        if self._mix is not None:
            images, target = self._mix(images, target, self._epoch, self._batch)
        self._batch += 1
        return images, target

    def _normalise(self, images: Tensor) -> Tensor:
        device, memory_format = self._options.device, self._options.memory_format
        images = images.to(device, non_blocking=True)
        normalised = torch.empty(images.shape, device=device, memory_format=memory_format)
        torch.sub(images, self._mean, out=normalised)
        return normalised.mul_(self._scale).to(self._options.dtype)

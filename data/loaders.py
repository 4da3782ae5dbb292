"""The loaders of both splits, and the feed that brings their batches to the device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from data.collate import fast_collate
from data.folder import FolderIndex
from data.sampler import StepPlan, StepSampler, rank_share
from data.synthetic import SyntheticBatches, SyntheticImages

Batches = Iterable[tuple[Tensor, Tensor]]


class FolderDataset(Dataset):  # type: ignore[type-arg]
    """Decoded and transformed images of an index; a key is (epoch, sample index)."""

    def __init__(self, index: FolderIndex, transform: Callable[[Image.Image, int, int], Image.Image]) -> None:
        self._index = index
        self._transform = transform
        self.classes = list(index.classes)

    def __len__(self) -> int:
        return len(self._index)

    def describe(self) -> str:
        return self._index.describe()

    def __getitem__(self, key: tuple[int, int]) -> tuple[Image.Image, int]:
        epoch, index = key
        path = self._index.name(index)
        try:
            with Image.open(path) as image:
                return self._transform(image.convert("RGB"), epoch, index), int(self._index.labels[index])
        except (OSError, SyntaxError, ValueError) as error:
            label = self._index.classes[self._index.labels[index]]
            raise RuntimeError(f"cannot read {path} (class {label}): {error}") from error


Source = FolderDataset | SyntheticImages


def _host_batches(source: Source, sampler: Any, workers: int, pin_memory: bool) -> Batches:
    """uint8 channels-last batches in the order of a batch sampler (or a list of batches of keys)."""
    if isinstance(source, SyntheticImages):
        return SyntheticBatches(source, sampler, pin_memory)
    # The start of the run says it in one line of ours, for all loaders and once.
    warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
    # Python 3.12 and newer warn of the fork with which torch starts its workers, and torch runs threads.
    warnings.filterwarnings("ignore", message=".*use of fork\\(\\) may lead to deadlocks", category=DeprecationWarning)
    return DataLoader(
        source,
        batch_sampler=sampler,
        num_workers=workers,
        collate_fn=fast_collate,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
        # Its own generator: iterating must not draw from the one that dropout uses.
        generator=torch.Generator().manual_seed(0),
    )


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

    Yields images (N, 3, H, W) in the asked dtype and memory format, and targets (N,) int64.
    """

    def __init__(self, batches: Batches, options: FeedOptions) -> None:
        self._batches = batches
        self._options = options
        self._mean = torch.tensor(options.mean, device=options.device).mul_(255).view(1, -1, 1, 1)
        self._scale = torch.tensor(options.std, device=options.device).mul_(255).reciprocal_().view(1, -1, 1, 1)

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
        images, target = batch
        return self._normalise(images), target.to(self._options.device, non_blocking=True)

    def _normalise(self, images: Tensor) -> Tensor:
        device, memory_format = self._options.device, self._options.memory_format
        images = images.to(device, non_blocking=True)
        normalised = torch.empty(images.shape, device=device, memory_format=memory_format)
        torch.sub(images, self._mean, out=normalised)
        return normalised.mul_(self._scale).to(self._options.dtype)


class TrainLoader:
    """Training batches of one rank, with the plan of each step."""

    def __init__(self, source: Source, sampler: StepSampler, workers: int, options: FeedOptions) -> None:
        self.sampler = sampler
        self._feed = DeviceFeed(_host_batches(source, sampler, workers, options.device.type == "cuda"), options)

    @property
    def steps_in_epoch(self) -> int:
        return self.sampler.steps_in_epoch()

    def epoch(self, epoch: int, consumed: int = 0) -> tuple[Iterator[StepPlan], Iterator[tuple[Tensor, Tensor]]]:
        """Plans and batches from ``consumed`` samples into the epoch to its end."""
        self.sampler.start(epoch, consumed)
        return self.sampler.plans(), iter(self._feed)


class ValLoader:
    """Validation batches of one rank; ``images`` counts those of all ranks, each exactly once."""

    def __init__(
        self, source: Source, batch_size: int, share: tuple[int, int], workers: int, options: FeedOptions
    ) -> None:
        rank, world_size = share
        self.images = len(source)
        self._keys = rank_share(self.images, batch_size, rank, world_size)
        self._feed = DeviceFeed(_host_batches(source, self._keys, workers, options.device.type == "cuda"), options)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._feed)

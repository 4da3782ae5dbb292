"""The loaders of both splits: batches of one rank, in order, on the device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from data.collate import BadImage
from data.dataset import ImageDataset
from data.feed import DeviceFeed, FeedOptions, Mix
from data.sampler import StepPlan, StepSampler, rank_share
from data.synthetic import SyntheticBatches, SyntheticImages
from data.worker_start import WorkerLoader, WorkerStart

Source = ImageDataset | SyntheticImages
# Called with the name of the split and the unreadable samples of a batch; raises where the run is to end.
OnBad = Callable[[str, Sequence[BadImage]], None]


def fail_on_bad(split: str, bad: Sequence[BadImage]) -> None:
    """For loaders outside a run: the first unreadable image is an error."""
    raise OSError(f"cannot read {bad[0].name} (class {bad[0].class_name}): {bad[0].reason}")


@dataclass(frozen=True)
class HostOptions:
    """How batches are made on the host. ``workers``: processes; 0 makes them in this one."""

    workers: int = 0
    pin_memory: bool = False
    niceness: int = 0
    on_bad: OnBad = fail_on_bad


class HostBatches:
    """uint8 channels-last batches of a split, in the order of a batch sampler (or a list of batches of keys)."""

    def __init__(self, split: str, source: Source, sampler: Any, options: HostOptions) -> None:
        self._split = split
        self._on_bad = options.on_bad
        self._batches: Iterable[Any] = (
            SyntheticBatches(source, sampler, options.pin_memory)
            if isinstance(source, SyntheticImages)
            else worker_batches(source, sampler, options)
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for images, target, *bad in self._batches:
            if bad and bad[0]:
                self._on_bad(self._split, bad[0])
            yield images, target


def worker_batches(source: Any, sampler: Any, options: HostOptions) -> WorkerLoader:
    """What ``source.__getitems__`` makes of each batch of ``sampler``, in order, made by worker processes."""
    # The start of the run says it in one line of ours, for all loaders and once.
    warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
    # Python 3.12 and newer warn of the fork with which torch starts its workers, and torch runs threads.
    warnings.filterwarnings("ignore", message=".*use of fork\\(\\) may lead to deadlocks", category=DeprecationWarning)
    # An iterator whose workers could not be started has none to stop; without this torch says so at length.
    _MultiProcessingDataLoaderIter._shutdown = True
    return WorkerLoader(
        source,
        batch_sampler=sampler,
        num_workers=options.workers,
        collate_fn=_as_it_is,
        pin_memory=options.pin_memory,
        persistent_workers=options.workers > 0,
        worker_init_fn=WorkerStart(options.niceness),
        # Its own generator: iterating must not draw from the one that dropout uses.
        generator=torch.Generator().manual_seed(0),
    )


def _as_it_is(batch: Any) -> Any:
    return batch


class TrainLoader:
    """Training batches of one rank, with the plan of each step."""

    def __init__(
        self, source: Source, sampler: StepSampler, host: HostOptions, feed: FeedOptions, mix: Mix | None = None
    ) -> None:
        self.sampler = sampler
        self._feed = DeviceFeed(HostBatches("train", source, sampler, host), feed, mix)

    @property
    def steps_in_epoch(self) -> int:
        return self.sampler.steps_in_epoch()

    def epoch(self, epoch: int, consumed: int = 0) -> tuple[Iterator[StepPlan], Iterator[tuple[Tensor, Tensor]]]:
        """Plans and batches from ``consumed`` samples into the epoch to its end."""
        self.sampler.start(epoch, consumed)
        self._feed.start(epoch, consumed // (self.sampler.batch_size * self.sampler.world_size))
        return self.sampler.plans(), iter(self._feed)


class ValLoader:
    """Validation batches of one rank; ``images`` counts those of all ranks, each exactly once."""

    def __init__(
        self, source: Source, batch_size: int, share: tuple[int, int], host: HostOptions, feed: FeedOptions
    ) -> None:
        rank, world_size = share
        self.images = len(source)
        self._keys = rank_share(self.images, batch_size, rank, world_size)
        self._feed = DeviceFeed(HostBatches("val", source, self._keys, host), feed)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self._feed)

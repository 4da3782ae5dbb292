"""Sources and loaders of both splits from plain values, whose names are the flags'."""

from __future__ import annotations

from dataclasses import dataclass

from data.folder import FolderIndex
from data.loaders import FeedOptions, FolderDataset, Source, TrainLoader, ValLoader
from data.sampler import StepSampler
from data.synthetic import build_synthetic
from data.transforms import TrainTransform, ValTransform


@dataclass(frozen=True)
class DataOptions:
    """What a sample looks like; sizes in pixels."""

    image_size: int
    val_image_size: int
    val_resize: int
    interpolation: str
    crop_scale: tuple[float, float]
    hflip: float
    seed: int
    synthetic_size: int
    num_classes: int
    val_batch_size: int


@dataclass(frozen=True)
class LoaderOptions:
    """How samples become batches."""

    batch_size: int
    val_batch_size: int
    grad_accum_steps: int
    steps_per_epoch: int | None
    workers: int
    seed: int


def open_sources(folder_set: tuple[FolderIndex, FolderIndex] | None, options: DataOptions) -> tuple[Source, Source]:
    """Training and validation samples: the folder's, or made-up ones without a folder."""
    if folder_set is None:
        sizes = options.image_size, options.val_image_size
        return build_synthetic(options.synthetic_size, options.num_classes, sizes, options.seed, options.val_batch_size)
    train = TrainTransform(options.image_size, options.crop_scale, options.hflip, options.interpolation, options.seed)
    val = ValTransform(options.val_image_size, options.val_resize, options.interpolation)
    return FolderDataset(folder_set[0], train), FolderDataset(folder_set[1], val)


def open_loaders(
    train_set: Source, val_set: Source, options: LoaderOptions, share: tuple[int, int], feed: FeedOptions
) -> tuple[TrainLoader, ValLoader]:
    """The loaders of one rank; ``share``: (rank, ranks)."""
    sampler = StepSampler(
        len(train_set), options.batch_size, *share, options.grad_accum_steps, options.seed, options.steps_per_epoch
    )
    train = TrainLoader(train_set, sampler, options.workers, feed)
    return train, ValLoader(val_set, options.val_batch_size, share, options.workers, feed)

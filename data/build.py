"""Sources and loaders of both splits from plain values, whose names are the flags'."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

from data.augment import build_augment
from data.dataset import ImageDataset
from data.decode import Decoder
from data.feed import FeedOptions
from data.folder import scan_data_dir
from data.index import OrderedIndex, SampleIndex
from data.loaders import HostOptions, OnBad, Source, TrainLoader, ValLoader
from data.mixing import Mixer
from data.progressive import SizeSchedule
from data.sampler import StepSampler
from data.shards import open_shards
from data.synthetic import build_synthetic
from data.transforms import TrainTransform, ValTransform

WORKER_NICENESS = 10


@dataclass(frozen=True)
class IndexOptions:
    """Where the encoded images are: a folder, or tar files, or neither."""

    data_dir: str | None
    val_labels: str | None
    class_map: str | None
    train_shards: str | None
    val_shards: str | None
    rescan: bool


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
    mean: tuple[float, ...]
    auto_augment: str | None
    random_erase: float
    exif_orientation: str
    max_image_pixels: int | None
    progressive: tuple[float, ...] | None = None
    epochs: int = 1
    ra_reps: int = 1


@dataclass(frozen=True)
class LoaderOptions:
    """How samples become batches."""

    batch_size: int
    val_batch_size: int
    grad_accum_steps: int
    steps_per_epoch: int | None
    workers: int
    seed: int
    mixup: float
    cutmix: float
    num_classes: int
    ra_reps: int = 1


def open_indexes(options: IndexOptions) -> tuple[OrderedIndex, OrderedIndex] | None:
    """Training and validation images of a folder or of tar files; None without either. Raises FolderError."""
    if options.train_shards and options.val_shards:
        return open_shards(options.train_shards, options.val_shards, options.rescan, options.class_map)
    if options.data_dir is None:
        return None
    return scan_data_dir(
        options.data_dir, val_labels=options.val_labels, class_map=options.class_map, rescan=options.rescan
    )


def open_sources(indexes: tuple[SampleIndex, SampleIndex] | None, options: DataOptions) -> tuple[Source, Source]:
    """Training and validation samples: those of the indexes, or made-up ones without any."""
    size_of = SizeSchedule(options.progressive, options.epochs, options.ra_reps) if options.progressive else None
    if indexes is None:
        sizes = options.image_size, options.val_image_size
        return build_synthetic(
            options.synthetic_size, options.num_classes, sizes, options.seed, options.val_batch_size, size_of
        )
    augment = build_augment(options.auto_augment, options.random_erase, options.mean)
    train = TrainTransform(
        options.image_size, options.crop_scale, options.hflip, options.interpolation, options.seed, augment
    )
    val = ValTransform(options.val_image_size, options.val_resize, options.interpolation)
    decoder = Decoder(options.exif_orientation == "apply", options.max_image_pixels)
    return ImageDataset(indexes[0], decoder, train, size_of), ImageDataset(indexes[1], decoder, val)


def contents_of(
    indexes: tuple[OrderedIndex, OrderedIndex] | None, sources: tuple[Source, Source]
) -> dict[str, dict[str, Any]]:
    """What each split holds: ``images``, and of files the marks of their labels and names."""
    each = [{"images": len(source)} for source in sources] if indexes is None else [i.contents() for i in indexes]
    return dict(zip(("train", "val"), each, strict=True))


def still_bad_of(sources: tuple[Source, Source]) -> dict[str, Callable[[Set[str]], Set[str]]]:
    """For each split of files: which of some names cannot be read now."""
    splits = zip(("train", "val"), sources, strict=True)
    return {split: source.still_bad for split, source in splits if isinstance(source, ImageDataset)}


def open_loaders(
    sources: tuple[Source, Source], options: LoaderOptions, share: tuple[int, int], feed: FeedOptions, on_bad: OnBad
) -> tuple[TrainLoader, ValLoader]:
    """The loaders of one rank; ``share``: (rank, ranks)."""
    train_set, val_set = sources
    sampler, host = plan_loading(len(train_set), options, share, feed.device.type, on_bad)
    train = TrainLoader(train_set, sampler, host, feed, build_mixer(options, share[0]))
    return train, ValLoader(val_set, options.val_batch_size, share, host, feed)


def build_mixer(options: LoaderOptions, rank: int) -> Mixer | None:
    """What mixes the images of a training batch; None where nothing does."""
    if not (options.mixup or options.cutmix):
        return None
    return Mixer(options.mixup, options.cutmix, options.num_classes, options.seed, rank)


def plan_loading(
    size: int, options: LoaderOptions, share: tuple[int, int], device: str, on_bad: OnBad
) -> tuple[StepSampler, HostOptions]:
    """In which order and by which processes one rank loads ``size`` training images; ``device``: its type."""
    sampler = StepSampler(
        size,
        options.batch_size,
        *share,
        options.grad_accum_steps,
        options.seed,
        options.steps_per_epoch,
        options.ra_reps,
    )
    return sampler, HostOptions(options.workers, device == "cuda", WORKER_NICENESS if device == "cpu" else 0, on_bad)

"""Our loader against the loaders that others train with: batches on the host, from the same files in the same order.

  ours          train.py's own: decoded into one channels-last uint8 buffer in shared memory
  reference     torchvision's: ImageFolder, RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize, default collate
  fast collate  as main_amp.py's: ImageFolder, RandomResizedCrop and flip on Pillow images, a collate function that
                transposes each into planes of one uint8 batch

All have the same workers, which live through all rounds and wait while another arm runs. --require is asked of ours
against the reference. Nothing is normalised, copied to a device or pinned after the batch is there; the reference alone
hands out float32, which is part of what it costs. A warm-up round starts the workers.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import common
import torch
from main_amp_style import open_rgb, transposing_collate
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from data.dataset import ImageDataset
from data.decode import Decoder
from data.facts import jpeg_decoder, look_at_files
from data.folder import FolderError, scan_data_dir
from data.loaders import HostBatches, HostOptions
from data.sampler import StepSampler
from data.transforms import TrainTransform
from trainer.errors import RunError, UserError
from trainer.hardware import usable_cores
from trainer.resolve import IMAGENET_MEAN, IMAGENET_STD

OURS, REFERENCE, FAST = "ours", "reference", "fast collate"
Batches = Iterable[tuple[Tensor, Tensor]]


class Numbers:
    """Our sampler's batches without the epoch, as other data sets take them."""

    def __init__(self, sampler: StepSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        for keys in self._sampler:
            yield [number for _, number in keys]


class Arm:
    """One loader; each call is an epoch of it and returns images a second from the first batch asked for to the last.

    The arms of a round draw the same epoch: call number k shuffles alike in each.
    """

    def __init__(self, open_batches: Callable[[StepSampler], Batches], sampler: StepSampler) -> None:
        self._sampler = sampler
        self._batches = open_batches(sampler)
        self._epoch = 0
        self.batch_bytes = 0
        self.batch: dict[str, Any] = {}

    def __call__(self) -> float:
        self._sampler.start(self._epoch)
        self._epoch += 1
        images = 0
        start = time.perf_counter()
        for number, (batch, target) in enumerate(self._batches):
            images += len(target)
            if number == 0:
                self._note(batch)
        return images / (time.perf_counter() - start)

    def _note(self, batch: Tensor) -> None:
        channels_last = batch.is_contiguous(memory_format=torch.channels_last)
        self.batch_bytes = batch.numel() * batch.element_size()
        self.batch = {"shape": list(batch.shape), "dtype": str(batch.dtype), "channels_last": channels_last}


def open_theirs(
    dataset: Dataset[Any], collate: Callable[[Any], Any] | None, workers: int, sampler: StepSampler
) -> Batches:
    return DataLoader(
        dataset,
        batch_sampler=Numbers(sampler),
        num_workers=workers,
        collate_fn=collate,
        persistent_workers=workers > 0,
    )


def build_arms(args: argparse.Namespace) -> tuple[dict[str, Arm], ImageDataset]:
    """The arms, and our data set, whose files they all read."""
    try:
        index, _ = scan_data_dir(str(args.data))
    except FolderError as error:
        raise UserError(f"{error} (scripts/bench/make_photos.py makes such a folder)") from error
    ours = ImageDataset(index, Decoder(), TrainTransform(args.image_size, (0.08, 1.0), 0.5, "bilinear", seed=0))
    crop = [transforms.RandomResizedCrop(args.image_size), transforms.RandomHorizontalFlip()]
    normalise = [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    folder = str(args.data / "train")
    reference = ImageFolder(folder, transforms.Compose([*crop, *normalise]), loader=open_rgb)
    fast = ImageFolder(folder, transforms.Compose(crop), loader=open_rgb)
    check_same_files(ours, reference)
    transposing = functools.partial(transposing_collate, memory_format=torch.contiguous_format)
    openers: dict[str, Callable[[StepSampler], Batches]] = {
        OURS: lambda sampler: HostBatches("train", ours, sampler, HostOptions(args.workers)),
        REFERENCE: lambda sampler: open_theirs(reference, None, args.workers, sampler),
        FAST: lambda sampler: open_theirs(fast, transposing, args.workers, sampler),
    }
    size, steps = len(ours), args.batches
    arms = {name: Arm(opener, StepSampler(size, args.batch_size, max_steps=steps)) for name, opener in openers.items()}
    return arms, ours


def check_same_files(ours: ImageDataset, theirs: ImageFolder) -> None:
    """The same numbers must mean the same files and labels, or the arms do different work."""
    index = ours.index
    mine = [(Path(index.name(number)), int(label)) for number, label in enumerate(index.labels)]
    if mine != [(Path(path), label) for path, label in theirs.samples]:
        raise UserError(
            f"we find {len(mine)} images in train/ and torchvision {len(theirs.samples)}, or in another order: "
            "take a folder without hidden files, links and rare suffixes, as make_photos.py writes it"
        )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.build_parser(__doc__, rounds=7, warmup_rounds=1)
    add = parser.add_argument
    add("data", metavar="DIR", type=Path, help="folder with train/ and val/, see make_photos.py")
    add("-b", "--batch-size", type=common.at_least(2), default=32, metavar="N", help="images a batch (32)")
    add("-j", "--workers", type=common.at_least(0), default=2, metavar="N", help="loader processes of each arm (2)")
    add("--image-size", type=common.at_least(1), default=224, metavar="N", help="pixels a side (224)")
    add("--batches", type=common.at_least(1), metavar="N", help="batches of an arm a round (a whole epoch)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("bench_loader", lambda: measure(argv))


def measure(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    arms, ours = build_arms(args)
    try:
        values = common.interleave(arms, args.rounds, args.warmup_rounds)
    except OSError as error:
        raise RunError(f"{error} (train.py DIR --check-data lists all such files)") from error
    title = f"-j {args.workers} b{args.batch_size} {args.image_size} px, {args.data}"
    comparisons = [
        common.Comparison(title, OURS, REFERENCE, "img/s", values),
        common.Comparison("", OURS, FAST, "img/s", values, required=False),
    ]
    files = look_at_files(ours.index)
    facts = {
        "batches": {name: {**arm.batch, "bytes": arm.batch_bytes} for name, arm in arms.items()},
        "files": asdict(files),
        "jpeg_decoder": jpeg_decoder(),
        "usable_cores": usable_cores(),
    }
    lines = [f"  {name}: {arm.batch_bytes} bytes a batch, {arm.batch['dtype']}" for name, arm in arms.items()]
    lines.append(f"files: {files.describe()}; ours decodes JPEG by {jpeg_decoder()}")
    return common.finish("bench_loader", args, comparisons, facts, lines)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Classes of images by a checkpoint of train.py, which brings model, class names, sizes and normalisation.

Images are decoded, resized and normalised as in the run's validation; the model computes in float32. A folder stands for
all images below it. With --csv a row an image and rank: path,rank,class,probability.

Exit codes: 0 done; 2 a mistake in the arguments; 5 some images could not be read: they are named and the others done.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_HOMES = (str(ROOT), str(ROOT / "scripts"), str(ROOT / "scripts" / "bench"))
sys.path[:0] = [path for path in _HOMES if path not in sys.path]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from common import Parser, at_least, note, run_to_exit_code  # noqa: E402
from saved_model import SavedModel, load_saved_model  # noqa: E402

from data.collate import HostBatch  # noqa: E402
from data.dataset import ImageDataset  # noqa: E402
from data.decode import Decoder  # noqa: E402
from data.feed import DeviceFeed, FeedOptions  # noqa: E402
from data.folder import FolderError  # noqa: E402
from data.index import Names  # noqa: E402
from data.listing import list_split  # noqa: E402
from data.loaders import HostOptions, worker_batches  # noqa: E402
from data.transforms import ValTransform  # noqa: E402
from trainer.checks import DEVICES  # noqa: E402
from trainer.environment import resolve_device  # noqa: E402
from trainer.errors import EXIT_BAD_DATA, EXIT_OK, UserError  # noqa: E402
from trainer.models import main_output  # noqa: E402


@dataclass(frozen=True)
class Images:
    """Files without labels, as an index that ``ImageDataset`` reads. ``labels``: (N,) int32, all 0."""

    paths: Names
    classes: tuple[str, ...] = ()

    @property
    def labels(self) -> np.ndarray:
        return np.zeros(len(self), dtype=np.int32)

    def __len__(self) -> int:
        return len(self.paths)

    def describe(self) -> str:
        return f"{len(self)} images"

    def name(self, index: int) -> str:
        return self.paths[index]

    def read(self, index: int) -> bytes:
        with open(self.name(index), "rb") as file:
            return file.read()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint of train.py")
    add("images", nargs="+", metavar="IMAGE|DIR", help="image files, or folders of them")
    add("--topk", type=at_least(1), default=5, metavar="K", help="classes an image, likeliest first (5)")
    add("--csv", action="store_true", help="comma-separated values on stdout")
    add("--ema", action="store_true", help="the averaged weights instead of the raw ones")
    add("-b", "--batch-size", type=at_least(1), default=32, metavar="N", help="images at once (32)")
    add("-j", "--workers", type=at_least(0), default=0, metavar="N", help="processes that decode (0: this one)")
    add("--device", choices=DEVICES, default="auto", help="where the model runs (auto)")
    return parser.parse_args(argv)


def find_images(given: Sequence[str]) -> list[str]:
    """The files given, folders replaced by the images below them. Raises UserError."""
    found: list[str] = []
    for path in given:
        if os.path.isdir(path):
            try:
                listing = list_split(path)
            except FolderError as error:
                raise UserError(str(error)) from error
            below = [os.path.join(path, listing.files[index]) for index in range(len(listing.files))]
            if not below:
                raise UserError(f"no image below {path}")
            found += below
        elif os.path.lexists(path):
            found.append(path)
        else:
            raise UserError(f"no file or folder {path}")
    return found


def open_images(saved: SavedModel, paths: Sequence[str]) -> ImageDataset:
    """The files with the decoding and resizing of the run's validation."""
    settings = saved.resolved
    decoder = Decoder(settings.get("exif_orientation") == "apply", settings.get("max_image_pixels"))
    transform = ValTransform(settings["val_image_size"], settings["val_resize"], settings["interpolation"])
    return ImageDataset(Images(Names(paths), ("",)), decoder, transform)


def predict(
    saved: SavedModel, paths: Sequence[str], args: argparse.Namespace, bad: list[str]
) -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """(path, its likeliest classes with their probabilities) of each readable file, in order; fills ``bad``."""
    device = resolve_device(args.device, 0)
    model, settings = saved.model.to(device), saved.resolved
    feed = FeedOptions(device, settings["mean"], settings["std"], torch.float32, torch.contiguous_format)
    numbers = range(len(paths))
    batches = [[(0, number) for number in numbers[at : at + args.batch_size]] for at in numbers[:: args.batch_size]]
    loader = worker_batches(open_images(saved, paths), batches, HostOptions(workers=args.workers))
    for keys, batch in zip(batches, loader, strict=True):
        names = _readable(paths, keys, batch, bad)
        if not names:
            continue
        ((images, _),) = DeviceFeed([(batch.images, batch.target)], feed)
        with torch.inference_mode():
            shares = main_output(model(images)).softmax(1)
        values, indices = shares.topk(min(args.topk, shares.shape[1]))
        for name, row, which in zip(names, values.tolist(), indices.tolist(), strict=True):
            yield name, [(_class(saved, index), share) for index, share in zip(which, row, strict=True)]


def _readable(paths: Sequence[str], keys: Sequence[tuple[int, int]], batch: HostBatch, bad: list[str]) -> list[str]:
    skipped = {image.number for image in batch.bad}
    for image in batch.bad:
        bad.append(image.name)
        note(f"cannot read {image.name}: {image.reason}")
    return [paths[number] for _, number in keys if number not in skipped]


def _class(saved: SavedModel, index: int) -> str:
    return saved.classes[index] if index < len(saved.classes) else str(index)


def run(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    saved, paths = load_saved_model(args.checkpoint, args.ema), find_images(args.images)
    bad: list[str] = []
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if args.csv:
        writer.writerow(["path", "rank", "class", "probability"])
    for path, found in predict(saved, paths, args, bad):
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        if args.csv:
            writer.writerows([shown, rank, name, f"{share:.6f}"] for rank, (name, share) in enumerate(found, 1))
        else:
            print(f"{shown}: {', '.join(f'{name} {share:.1%}' for name, share in found)}")
    if bad:
        note(f"{len(bad)} of {len(paths)} images could not be read")
    return EXIT_BAD_DATA if bad else EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    return run_to_exit_code("predict", lambda: run(argv))


if __name__ == "__main__":
    sys.exit(main())

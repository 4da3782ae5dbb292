"""The device feed against ``batch.to(device)`` of float NCHW batches that the host normalised; same images.

Two comparisons. "whole": from decoded Pillow images to a batch that the model can take, in one process; ours collates
uint8 and normalises on the device, the usual loader converts and normalises each image and stacks them. "bus" (CUDA
only: on a CPU a finished float batch has no way to go): from pinned host batches to the same place. Where the model
wants channels-last or half precision, the usual loop converts on the device; without either (--memory-format
contiguous_format --dtype float32) it is ``batch.to(device)`` alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence

import common
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from data.collate import as_batch, new_rows
from data.feed import DeviceFeed, FeedOptions
from trainer.checks import DEVICES
from trainer.environment import resolve_device
from trainer.memory_format import resolve_memory_format
from trainer.resolve import IMAGENET_MEAN, IMAGENET_STD

ARMS = ("device feed", "batch.to(device)")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
Sample = tuple[Image.Image, int]
Batch = tuple[Tensor, Tensor]


def make_samples(batches: int, batch_size: int, image_size: int, seed: int = 0) -> list[list[Sample]]:
    """Batches of (RGB image, label), as a decoder and its crop leave them."""
    generator = np.random.Generator(np.random.Philox(key=[seed, 0]))
    shape = (image_size, image_size, 3)
    return [
        [(Image.fromarray(generator.integers(0, 256, shape, np.uint8)), label) for label in range(batch_size)]
        for _ in range(batches)
    ]


class UsualCollate:
    """ToTensor and Normalize an image, then a stack: (N, 3, H, W) float32 contiguous, and (N,) labels."""

    def __init__(self) -> None:
        self._transform = v2.Compose(
            [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
        )

    def __call__(self, samples: Sequence[Sample]) -> Batch:
        return torch.stack([self._transform(image) for image, _ in samples]), torch.tensor(
            [label for _, label in samples]
        )


def written_once(samples: list[Sample]) -> Batch:
    """What a loader worker leaves: bytes in channels-last memory."""
    rows = new_rows(len(samples), samples[0][0].width)
    for row, (image, _) in zip(rows.numpy(), samples, strict=True):
        row[:] = np.asarray(image)
    return as_batch(rows, [label for _, label in samples], [])[:2]


def pinned(batch: Batch, device: torch.device) -> Batch:
    """As the loader's pinning thread leaves it; nothing to do without an accelerator."""
    return (batch[0].pin_memory(), batch[1].pin_memory()) if device.type == "cuda" else batch


def usual_copy(batches: Iterable[Batch], options: FeedOptions) -> Iterable[Batch]:
    """Float batches to the device, then into the dtype and format that the model wants."""
    for images, target in batches:
        images = images.to(options.device, non_blocking=True)
        images = images.to(options.dtype, memory_format=options.memory_format)
        yield images, target.to(options.device, non_blocking=True)


def arm(batches: Callable[[], Iterable[Batch]], images: int, device: torch.device) -> Callable[[], float]:
    """Images a second from the first batch asked for to the last one ready."""

    def measure() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in batches():
            pass
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return images / (time.perf_counter() - start)

    return measure


def build_arms(samples: list[list[Sample]], options: FeedOptions) -> dict[str, dict[str, Callable[[], float]]]:
    """The arms of each comparison; the words are those of the docstring above."""
    device, usual = options.device, UsualCollate()
    images = sum(map(len, samples))
    arms = {
        "whole": (
            lambda: DeviceFeed((pinned(written_once(batch), device) for batch in samples), options),
            lambda: usual_copy((pinned(usual(batch), device) for batch in samples), options),
        )
    }
    if device.type == "cuda":
        ours = [pinned(written_once(batch), device) for batch in samples]
        theirs = [pinned(usual(batch), device) for batch in samples]
        arms["bus"] = (lambda: DeviceFeed(ours, options), lambda: usual_copy(theirs, options))
    return {
        part: {name: arm(batches, images, device) for name, batches in zip(ARMS, pair, strict=True)}
        for part, pair in arms.items()
    }


def check_same_images(samples: list[list[Sample]], options: FeedOptions) -> None:
    """Both arms must hand the model the same numbers, or the ratio means nothing."""
    ours = next(iter(DeviceFeed([written_once(samples[0])], options)))[0]
    theirs = next(iter(usual_copy([UsualCollate()(samples[0])], options)))[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4 if options.dtype is torch.float32 else 0.05)
    assert ours.is_contiguous(memory_format=options.memory_format), "the feed missed the memory format"
    assert theirs.is_contiguous(memory_format=options.memory_format), "the usual copy missed the memory format"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.build_parser(__doc__, rounds=9, warmup_rounds=2)
    add = parser.add_argument
    add("-b", "--batch-size", type=common.at_least(1), default=64, metavar="N", help="images a batch (64)")
    add("--batches", type=common.at_least(1), default=8, metavar="N", help="batches of an arm a round (8)")
    add("--image-size", type=common.at_least(1), default=224, metavar="N", help="pixels a side (224)")
    add("--memory-format", choices=("channels_last", "contiguous_format"), default="channels_last")
    add("--dtype", choices=tuple(DTYPES), default="float32", help="what the model takes (float32)")
    add("--device", choices=DEVICES, default="auto", help="where the batches go (auto)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("bench_feed", lambda: measure(argv))


def measure(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    device = resolve_device(args.device, 0)
    memory_format = resolve_memory_format(args.memory_format == "channels_last")
    options = FeedOptions(device, IMAGENET_MEAN, IMAGENET_STD, DTYPES[args.dtype], memory_format)
    samples = make_samples(args.batches, args.batch_size, args.image_size)
    check_same_images(samples, options)
    comparisons = []
    for part, arms in build_arms(samples, options).items():
        title = f"{part}: b{args.batch_size} {args.image_size} px to {device.type}, {args.dtype}, {args.memory_format}"
        common.note(title)
        values = common.interleave(arms, args.rounds, args.warmup_rounds)
        comparisons.append(common.Comparison(title, *ARMS, "img/s", values))
    return common.finish("bench_feed", args, comparisons, {})


if __name__ == "__main__":
    sys.exit(main())

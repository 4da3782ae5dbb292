"""A training loop in the manner of the original main_amp.py, to put a speed beside ours: DIR/train, one epoch, img/s.

torchvision's ImageFolder and transforms in workers, a collate function that turns every image from rows of pixels to
planes, a prefetcher that copies and normalises in float32 on a stream of its own and asks the loader for the next batch
before it hands out the present one, and a loss read back at every log line. Optimizer and precision are those of the
bare loop, which has fused SGD where the original had none.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import common
import numpy as np
import torch
from bare_loop import BareLoop
from our_loop import Batch, now
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

from data.decode import open_image
from trainer import environment, resolve
from trainer.checks import AMP_DTYPES, DEVICES
from trainer.config import TrainConfig
from trainer.distributed import Ranks
from trainer.errors import UserError
from trainer.memory_format import resolve_memory_format
from trainer.resolve import IMAGENET_MEAN, IMAGENET_STD

LEVELS = {"float32": "O0", "autocast": "O1", "half": "O2"}


def open_rgb(path: str) -> Image.Image:
    """As torchvision's own loader does it, of the formats that ours takes: some of Pillow's others start programs."""
    return open_image(Path(path).read_bytes()).convert("RGB")


def transposing_collate(samples: Sequence[tuple[Image.Image, int]], memory_format: torch.memory_format) -> Batch:
    """(N, 3, H, W) uint8 in ``memory_format``: each image is transposed, then added onto zeros."""
    width, height = samples[0][0].size
    batch = torch.zeros((len(samples), 3, height, width), dtype=torch.uint8).to(memory_format=memory_format)
    for position, (image, _) in enumerate(samples):
        batch[position] += torch.from_numpy(np.moveaxis(np.array(image), 2, 0))
    return batch, torch.tensor([label for _, label in samples])


class StreamPrefetcher:
    """Batches on the device, normalised, one ahead of the step that runs; on a CPU without a stream."""

    def __init__(self, loader: Iterable[Batch], device: torch.device, dtype: torch.dtype) -> None:
        self._loader = loader
        self._device = device
        self._dtype = dtype
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._mean, self._std = (
            torch.tensor(values, device=device).mul_(255).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD)
        )

    def __iter__(self) -> Iterator[Batch]:
        batches = iter(self._loader)
        following = self._load(batches)
        while following is not None:
            present = following
            if self._stream is not None:
                current = torch.cuda.current_stream(self._device)
                current.wait_stream(self._stream)
                for tensor in present:
                    tensor.record_stream(current)
            following = self._load(batches)
            yield present

    def _load(self, batches: Iterator[Batch]) -> Batch | None:
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(self._stream):  # None: no change of stream
            images, target = (tensor.to(self._device, non_blocking=True) for tensor in batch)
            return images.float().sub_(self._mean).div_(self._std).to(self._dtype), target


def build_loader(args: argparse.Namespace, device: torch.device) -> DataLoader[Batch]:
    crop = transforms.Compose([transforms.RandomResizedCrop(args.image_size), transforms.RandomHorizontalFlip()])
    try:
        folder = ImageFolder(str(args.data / "train"), crop, loader=open_rgb)
    except (OSError, RuntimeError) as error:
        raise UserError(f"no class folders in {args.data}/train ({error}): see make_photos.py") from error
    if args.steps and len(folder) < args.steps * args.batch_size:
        raise UserError(f"{len(folder)} images are fewer than --steps {args.steps} of {args.batch_size}")
    memory_format = resolve_memory_format(args.memory_format == "channels_last")
    return DataLoader(
        folder,
        args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
        collate_fn=functools.partial(transposing_collate, memory_format=memory_format),
    )


def train(args: argparse.Namespace) -> tuple[float, int, float]:
    """One epoch; images a second of its steady steps, how many those are, and the last loss read back."""
    device = environment.resolve_device(args.device, 0)
    torch.backends.cudnn.benchmark = True
    loader = build_loader(args, device)
    asked = TrainConfig(
        arch=args.arch,
        batch_size=args.batch_size,
        image_size=args.image_size,
        num_classes=len(loader.dataset.classes),  # type: ignore[attr-defined]
        opt_level=LEVELS[args.precision],
        amp_dtype=args.amp_dtype,
        channels_last=args.memory_format == "channels_last",
        device=args.device,
    )
    config, _ = resolve.resolve_config(asked, device, Ranks(), None)
    loop = BareLoop(config, device, args.lr)
    batches = StreamPrefetcher(loader, device, loop.half if args.precision == "half" else torch.float32)
    steps = args.steps or len(loader)
    if steps <= args.warmup_steps:
        raise UserError(f"{steps} steps leave nothing to time after --warmup-steps {args.warmup_steps}")
    loss = torch.zeros(())
    start = line_start = now(device)
    for step, batch in enumerate(batches, 1):
        loss = loop.run([batch], 1)
        if step == args.warmup_steps:
            start = now(device)
        if step % args.print_freq == 0:
            line_start = say(step, steps, loss, args, line_start, device)
        if step == steps:
            break
    steady = steps - args.warmup_steps
    return steady * args.batch_size / (now(device) - start), steady, loss.item()


def say(step: int, steps: int, loss: Tensor, args: argparse.Namespace, start: float, device: torch.device) -> float:
    """A log line, which waits for the device; returns the time."""
    value, end = loss.item(), now(device)
    speed = args.print_freq * args.batch_size / (end - start)
    print(f"Epoch: [0][{step}/{steps}]\tSpeed {speed:.3f}\tLoss {value:.4f}", flush=True)
    return end


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("data", metavar="DIR", type=Path, help="folder with train/, see make_photos.py")
    add("-a", "--arch", default="resnet50", help="any --arch of train.py (resnet50)")
    add("-b", "--batch-size", type=common.at_least(2), default=200, metavar="N", help="images a step (200)")
    add("-j", "--workers", type=common.at_least(0), default=4, metavar="N", help="loader processes (4)")
    add("--image-size", type=common.at_least(1), default=224, metavar="N", help="pixels a side (224)")
    add(
        "--precision",
        choices=tuple(LEVELS),
        default="float32",
        help="half: with float32 batch norm and masters (float32)",
    )
    add("--amp-dtype", choices=AMP_DTYPES, default="auto", help="the half type of autocast and half (auto)")
    add("--memory-format", choices=("channels_last", "contiguous_format"), default="contiguous_format")
    add("--device", choices=DEVICES, default="auto", help="where to train (auto)")
    add("--lr", type=float, default=0.01, help="learning rate (0.01)")
    add("--steps", type=common.at_least(1), metavar="N", help="stop after these (the whole epoch)")
    add("--warmup-steps", type=common.at_least(0), default=5, metavar="N", help="first steps, not timed (5)")
    add("-p", "--print-freq", type=common.at_least(1), default=10, metavar="N", help="steps between log lines (10)")
    add("--json", type=Path, metavar="FILE", help="result file (none)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("main_amp_style", lambda: measure(argv))


def measure(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    speed, steps, loss = train(args)
    print(f"main_amp_style: {speed:.2f} img/s over {steps} steps")
    if args.json:
        args.json.write_text(json.dumps({"images_per_sec": speed, "steady_steps": steps, "loss": loss}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

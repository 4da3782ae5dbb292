"""Our training loop with all logging on against a bare hand-written one: same model, batches, optimizer and heap.

Both run in this process, in turns of --steps steps; validation and checkpoints are outside the timed part. Beside the
ratio stands the share of the machine's limit that each reaches: the FLOPs of its forward and backward passes a second
over those of a large matrix product timed in the same rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
import machine
import torch
from bare_loop import BareLoop
from our_loop import Batch, OurLoop, ReadyBatches, now
from torch.utils.flop_counter import FlopCounterMode

from trainer import build, resolve
from trainer.checks import AMP_DTYPES, DEVICES, OPT_LEVELS
from trainer.config import TrainConfig
from trainer.engine import LoopOptions
from trainer.exits import Session
from trainer.memory_format import resolve_memory_format

LR = 0.01  # small enough for every architecture to stay finite on made-up images
BATCHES = 4  # different ones, shown in turn


def make_batches(config: TrainConfig, device: torch.device, dtype: torch.dtype) -> list[Batch]:
    """Made-up normalised images (N, 3, H, W) and targets (N,) on the device, in the asked memory format."""
    generator = torch.Generator().manual_seed(config.seed)
    memory_format = resolve_memory_format(config.channels_last)
    size = config.image_size or 0
    batches = []
    for _ in range(BATCHES):
        images = torch.randn(config.batch_size, 3, size, size, generator=generator)
        target = torch.randint(config.num_classes or 0, (config.batch_size,), generator=generator)
        batches.append((images.to(device, dtype, memory_format=memory_format), target.to(device)))
    return batches


def matmul_arm(size: int, dtype: torch.dtype, device: torch.device) -> Callable[[], float]:
    """FLOPs a second of the product of two square matrices, ``size`` a side."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
    repeats = 20 if device.type == "cuda" else 2
    product = torch.empty_like(left)

    def measure() -> float:
        torch.mm(left, right, out=product)  # wakes the clocks and fills the caches
        start = now(device)
        for _ in range(repeats):
            torch.mm(left, right, out=product)
        return repeats * 2 * size**3 / (now(device) - start)

    return measure


class Loops:
    """Both loops on one device with equal weights and the same batches; ``folder`` takes what ours writes."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        asked = asked_config(args)
        group, _ = build.open_group(asked.device, asked.deterministic, asked.tf32, Session())
        self.device = group.device
        self.config, _ = resolve.resolve_config(asked, group.device, group.ranks, None)
        self.stepper = build.build_stepper(self.config, group, new_weights=True).stepper
        self.batches = make_batches(self.config, self.device, self.stepper.precision.input_dtype)
        self.bare = BareLoop(self.config, self.device, LR)
        ready = ReadyBatches(self.batches, args.steps, args.batch_size, self.device)
        options = LoopOptions(args.rounds + args.warmup_rounds, args.print_freq, self.config.timing_warmup_steps)
        self.ours = OurLoop(self.stepper, group, ready, options, LR, folder)
        self._steps = args.steps

    def arms(self) -> dict[str, Callable[[], float]]:
        """Images a second of one block of steps of either."""
        images = self._steps * self.config.batch_size

        def run_bare() -> float:
            start = now(self.device)
            self.bare.run(self.batches, self._steps)
            return images / (now(self.device) - start)

        return {"ours": lambda: images / self.ours.run(), "bare": run_bare}

    def products(self, size: int | None) -> dict[str, Callable[[], float]]:
        """Matrix products in the types the step computes in, on CUDA in float16 too."""
        cuda = self.device.type == "cuda"
        halves = {torch.float16} if cuda else set()
        halves |= {self.bare.half} if self.config.opt_level != "O0" else set()
        side = size or (8192 if cuda else 2048)
        dtypes = [torch.float32, *sorted(halves, key=str)]
        return {f"{str(d).removeprefix('torch.')} product": matmul_arm(side, d, self.device) for d in dtypes}

    def flops_of_image(self) -> float:
        """Of the forward and the backward pass, counted on a model of its own: both arms keep equal weights."""
        with FlopCounterMode(display=False) as counter:
            BareLoop(self.config, self.device, LR).run(self.batches, 1)
        return counter.get_total_flops() / self.config.batch_size


def asked_config(args: argparse.Namespace) -> TrainConfig:
    return TrainConfig(
        arch=args.arch,
        batch_size=args.batch_size,
        image_size=args.image_size,
        num_classes=args.num_classes,
        opt_level=args.opt_level,
        amp_dtype=args.amp_dtype,
        channels_last=args.memory_format == "channels_last",
        device=args.device,
        lr=LR,
    )


def limit_shares(values: dict[str, list[float]], flops_of_image: float) -> dict[str, Any]:
    """Median FLOPs a second of the loops over those of each product, round by round."""
    loops = {arm: [flops_of_image * speed for speed in values[arm]] for arm in ("ours", "bare")}
    products = [arm for arm in values if arm not in loops]
    shares = {
        arm: {product: common.Comparison("", arm, product, "FLOP/s", {**values, **loops}).ratio for product in products}
        for arm in loops
    }
    return {
        "flops_of_image": flops_of_image,
        "float32_product_precision": torch.get_float32_matmul_precision(),
        "product_flops_per_s": {p: values[p] for p in products},
        "share_of_limit": shares,
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.build_parser(__doc__, rounds=9, warmup_rounds=1)
    add = parser.add_argument
    add("-a", "--arch", default="resnet18", help="any --arch of train.py (resnet18)")
    add("-b", "--batch-size", type=common.at_least(2), default=32, metavar="N", help="images a step (32)")
    add("--image-size", type=common.at_least(1), default=64, metavar="N", help="pixels a side (64)")
    add("--num-classes", type=common.at_least(1), default=1000, metavar="N", help="outputs (1000)")
    add("--opt-level", choices=OPT_LEVELS, default="O0", help="precision (O0)")
    add("--amp-dtype", choices=AMP_DTYPES, default="auto", help="the half type of O1 to O3 (auto)")
    add("--memory-format", choices=("channels_last", "contiguous_format"), default="channels_last")
    add("--device", choices=DEVICES, default="auto", help="where to train (auto)")
    add("--steps", type=common.at_least(1), default=20, metavar="N", help="steps of an arm a round (20)")
    add("--print-freq", type=common.at_least(1), default=10, metavar="N", help="steps between our log lines (10)")
    add("--heap", choices=machine.HEAPS, default="retain", help="glibc heap of this process (retain)")
    add("--matmul-size", type=common.at_least(1), metavar="N", help="matrix side (2048; 8192 on CUDA)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("bench_step", lambda: measure(argv))


def measure(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    if argv is None:
        machine.enter_heap(args.heap)
    with tempfile.TemporaryDirectory() as folder:
        loops = Loops(args, Path(folder))
        with contextlib.closing(loops.ours):
            flops_of_image = loops.flops_of_image()
            arms = {**loops.arms(), **loops.products(args.matmul_size)}
            values = common.interleave(arms, args.rounds, args.warmup_rounds)
    title = (
        f"{args.arch} b{args.batch_size} {args.image_size} px, {args.opt_level}, {args.memory_format}, heap {args.heap}"
    )
    comparison = common.Comparison(title, "ours", "bare", "img/s", values)
    limit = limit_shares(values, flops_of_image)
    lines = [f"share of the machine's limit, at {flops_of_image / 1e9:.3g} GFLOP an image:"]
    for arm, shares in limit["share_of_limit"].items():
        named = ", ".join(f"{100 * share:.1f} % of the {product}" for product, share in shares.items())
        lines.append(f"  {arm}: {named}")
    return common.finish("bench_step", args, [comparison], limit, lines)


if __name__ == "__main__":
    sys.exit(main())

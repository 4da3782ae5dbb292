"""A CPU heap of ours (--heap) against the default one, as alternating fresh runs of train.py on a CPU.

Made-up images, both memory formats, a few models: images a second of the steady steps, and the peak memory of each.
A run is one epoch of --steps steps and a short validation. --require is asked of every model in the formats named by
--require-formats.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
import machine
from runs import read_summary, run_process, train_command

from trainer.checks import OPT_LEVELS

FORMATS = ("channels_last", "contiguous_format")
HEAPS = ("retain", "hugepages")  # what may be set against the default


def run_arm(args: argparse.Namespace, arch: str, memory_format: str, heap: str) -> dict[str, float]:
    """One run of train.py in a fresh process; the numbers of its summary.csv."""
    with tempfile.TemporaryDirectory() as folder:
        command = train_command(
            *("-a", arch, "-b", args.batch_size, "--image-size", args.image_size, "--num-classes", args.num_classes),
            *("--synthetic-size", args.steps * args.batch_size, "--epochs", 1, "--opt-level", args.opt_level),
            *("--channels-last", str(memory_format == "channels_last").lower(), "--cpu-heap", heap, "--device", "cpu"),
            *("--timing-warmup-steps", args.warmup_steps, "--output-dir", Path(folder, "run")),
        )
        # The variables are cleared, so that --cpu-heap alone decides. A model of the caller's is found in the present folder.
        run_process(command, machine.heap_environment("default"), Path.cwd())
        return read_summary(Path(folder, "run"))


def compare(args: argparse.Namespace, arch: str, memory_format: str) -> tuple[common.Comparison, dict[str, Any]]:
    """One model in one format; the comparison of speeds, and the peak memory in GiB by heap."""
    arms = (args.heap, "default")
    peaks: dict[str, list[float]] = {heap: [] for heap in arms}

    def arm(heap: str) -> Callable[[], float]:
        def run() -> float:
            summary = run_arm(args, arch, memory_format, heap)
            peaks[heap].append(summary["peak_memory_gib"])
            return summary["images_per_sec_total"]

        return run

    title = f"{arch} b{args.batch_size} {args.image_size} px, {args.opt_level}, {memory_format}"
    common.note(title)
    values = common.interleave({heap: arm(heap) for heap in arms}, args.rounds, args.warmup_rounds)
    peak = {heap: max(found) for heap, found in peaks.items()}
    required = memory_format in args.require_formats
    return common.Comparison(title, *arms, "img/s", values, required), {"title": title, "peak_memory_gib": peak}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.build_parser(__doc__, rounds=3, warmup_rounds=0)
    add = parser.add_argument
    add("-a", "--arch", nargs="+", default=["resnet50", "mobilenet_v2", "resnet18"], help="models, each measured alone")
    add("-b", "--batch-size", type=common.at_least(2), default=16, metavar="N", help="images a step (16)")
    add("--image-size", type=common.at_least(1), default=224, metavar="N", help="pixels a side (224)")
    add("--num-classes", type=common.at_least(1), default=1000, metavar="N", help="outputs (1000)")
    add("--opt-level", choices=OPT_LEVELS, default="O0", help="precision (O0)")
    add("--memory-format", nargs="+", choices=FORMATS, default=list(FORMATS), help="formats to measure (both)")
    add(
        "--require-formats",
        nargs="+",
        choices=FORMATS,
        default=["channels_last"],
        help="those --require is asked of (channels_last)",
    )
    add("--heap", choices=HEAPS, default="retain", help="what the default heap is compared with (retain)")
    add("--steps", type=common.at_least(1), default=14, metavar="N", help="steps of a run, warm-up included (14)")
    add(
        "--warmup-steps",
        type=common.at_least(0),
        default=4,
        metavar="N",
        help="first steps that the speed leaves out (4)",
    )
    args = parser.parse_args(argv)
    if args.steps < max(2, 2 * args.warmup_steps):  # train.py then times all but the first
        parser.error(
            f"--steps {args.steps} is too few to leave {args.warmup_steps} warm-up steps out: take twice as many"
        )
    return args


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("bench_heap", lambda: measure(argv))


def measure(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    measured = [compare(args, arch, memory_format) for arch in args.arch for memory_format in args.memory_format]
    memory = [facts for _, facts in measured]
    lines = [f"peak memory, {args.heap} against default:"]
    for facts in memory:
        other, default = (facts["peak_memory_gib"][heap] for heap in (args.heap, "default"))
        lines.append(f"  {facts['title']}: {other:.2f} GiB, {default:.2f} GiB, {other / default:.2f} times")
    return common.finish("bench_heap", args, [comparison for comparison, _ in measured], {"memory": memory}, lines)


if __name__ == "__main__":
    sys.exit(main())

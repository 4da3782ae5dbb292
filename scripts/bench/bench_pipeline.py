"""Training from files against what loader and compute would allow if each ran alone and both shared the cores.

Three fresh processes a round, in turn: the loader alone (train.py --bench-data), training on made-up images (the time
it waits for them taken off), and training on the folder. On a CPU the loader's processes and the step want the same
cores, so the bound is the serial one: 1 / (1 / loader + 1 / compute). With an accelerator the two run side by side,
and the bound is the slower of them. --require is asked of training from files / bound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import common
import machine
from runs import read_summary, run_process, train_command

from data.folder import FolderError
from data.listing import list_split
from trainer.checks import OPT_LEVELS
from trainer.errors import RunError

LOADER, COMPUTE, FILES, BOUND = "loader alone", "compute alone", "from files", "bound"


class Runs:
    """The three kinds of runs; each call is one process and gives images a second."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        try:
            self._images = int((list_split(str(args.data / "train")).owners >= 0).sum())
        except FolderError:
            self._images = 0
        if not self._images:
            raise RunError(
                f"{args.data}/train holds no class folder with images (scripts/bench/make_photos.py makes some)"
            )

    def loader(self) -> float:
        batches = self._images // self._args.batch_size
        log = self._run(self._args.data.resolve(), "--bench-data", max(1, batches), "--json")
        found = next((line for line in reversed(log.splitlines()) if line.startswith("{")), None)
        if found is None:
            raise RunError("--bench-data --json printed no JSON object")
        return float(json.loads(found)["images_per_sec"])

    def compute(self) -> float:
        summary = self._train("--synthetic-size", self._images)
        return summary["images_per_sec_total"] / max(1e-9, 1 - summary["data_wait_share"])

    def files(self) -> float:
        return self._train(self._args.data.resolve())["images_per_sec_total"]

    def _train(self, *data: object) -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder, "run")
            self._run(*data, "--epochs", 1, "--timing-warmup-steps", self._args.warmup_steps, "--output-dir", run)
            return read_summary(run)

    def _run(self, *flags: object) -> str:
        args = self._args
        command = train_command(
            *flags, *("-a", args.arch, "-b", args.batch_size, "-j", args.workers, "--image-size", args.image_size),
            *("--opt-level", args.opt_level, "--channels-last", "true", "--print-freq", 1000),
        )  # fmt: skip
        return run_process(command, machine.heap_environment("default"), Path.cwd())


def bound(loader: float, compute: float, side_by_side: bool) -> float:
    """Images a second that loading and computing allow together."""
    return min(loader, compute) if side_by_side else 1 / (1 / loader + 1 / compute)


def compare(values: Mapping[str, Sequence[float]], title: str, side_by_side: bool) -> common.Comparison:
    bounds = [bound(*pair, side_by_side) for pair in zip(values[LOADER], values[COMPUTE], strict=True)]
    return common.Comparison(title, FILES, BOUND, "img/s", {FILES: values[FILES], BOUND: bounds})


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.build_parser(__doc__, rounds=3, warmup_rounds=0)
    add = parser.add_argument
    add("data", metavar="DIR", type=Path, help="folder with train/ and val/, see make_photos.py")
    add("-a", "--arch", default="resnet18", help="model (resnet18)")
    add("-b", "--batch-size", type=common.at_least(2), default=32, metavar="N", help="images a step (32)")
    add("-j", "--workers", type=common.at_least(0), default=2, metavar="N", help="loader processes (2)")
    add("--image-size", type=common.at_least(1), default=128, metavar="N", help="pixels a side (128)")
    add("--opt-level", choices=OPT_LEVELS, default="O0", help="precision (O0)")
    add("--warmup-steps", type=common.at_least(0), default=3, metavar="N", help="first steps that no speed counts (3)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("bench_pipeline", lambda: measure(argv))


def measure(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    runs = Runs(args)
    arms = {LOADER: runs.loader, COMPUTE: runs.compute, FILES: runs.files}
    values = common.interleave(arms, args.rounds, args.warmup_rounds)
    import torch

    side_by_side = torch.cuda.is_available()
    title = f"{args.arch} b{args.batch_size} {args.image_size} px, -j {args.workers}, {args.data}"
    alone = [f"  {name}: {statistics.median(values[name]):.1f} img/s" for name in (LOADER, COMPUTE)]
    facts = {"values": values, "bound": "slower of the two" if side_by_side else "one after the other"}
    return common.finish("bench_pipeline", args, [compare(values, title, side_by_side)], facts, alone)


if __name__ == "__main__":
    sys.exit(main())

"""Which modules of a model are slower in channels-last, and by how much: each timed alone in both memory formats.

One real forward pass (of made-up images, in the chosen precision) records every module that calls no other and takes a
4-D input. Each kind is then timed on random input of that shape, forward and backward, contiguous and channels-last in
turns. Kinds are told apart by type, settings and input shape; one is timed once and counted as often as it is called.
A module is slower only where the spread of its rounds says so; a loss counts where the model's own forward pass brings
it a channels-last tensor. What lies between modules (additions, concatenations, functional calls) is in the whole step
alone. On a GPU, a call too short to fill it is timed with its launch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "scripts" / "bench")) if path not in sys.path]

import common  # noqa: E402
import layer_report  # noqa: E402
import stopwatch  # noqa: E402
from both_formats import CHANNELS_LAST, CONTIGUOUS, BothFormats, add_machine_options, add_model_options  # noqa: E402
from layer_arms import LayerResult, time_layer  # noqa: E402
from layer_calls import record_calls  # noqa: E402

from trainer.errors import UserError  # noqa: E402


def profile(both: BothFormats, args: argparse.Namespace) -> list[LayerResult]:
    """Every kind of call of the model, timed."""
    models = {name: stepper.model for name, stepper in both.steppers.items()}
    images = both.images(CHANNELS_LAST)
    cases = record_calls(models[CHANNELS_LAST], both.device, lambda: both.forward(CHANNELS_LAST, images))
    if not cases:
        raise UserError(f"--arch {args.arch}: no module of this model takes a 4-D input, so there is nothing to time")
    results = []
    for number, case in enumerate(cases, 1):
        result = time_layer(
            models, case, both.half, both.device, args.rounds, args.warmup_rounds, args.min_time_ms / 1e3
        )
        factor = f"{result.factor.median:.2f}" if result.times else result.problem
        common.note(f"{number}/{len(cases)} {case.label} {case.module} on {case.shapes}: {factor}")
        results.append(result)
    return results


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.build_parser(__doc__, rounds=9, warmup_rounds=1)
    add = parser.add_argument
    add("-a", "--arch", required=True, help="any --arch of train.py")
    add_model_options(parser, batch_size=16)
    add_machine_options(parser)
    add("--min-time-ms", type=common.at_least(0), default=20, metavar="MS", help="least time of a module a round (20)")
    add("--png", type=Path, metavar="FILE", help="a bar chart of gains and losses")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("profile_layers", lambda: measure(argv))


def measure(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    if args.png:
        layer_report.prepare_chart(args.png)
    both = BothFormats(args)
    common.note(both.title())
    step = stopwatch.measure(both.steps(), both.device, args.rounds, args.warmup_rounds, 0.0)
    results = profile(both, args)
    summary = layer_report.summarize(results, step)
    if args.png:
        layer_report.draw_chart(results, both.title(), args.png)
    images = both.config.batch_size
    speeds = {name: [images / seconds for seconds in step.totals(name)] for name in (CHANNELS_LAST, CONTIGUOUS)}
    comparison = common.Comparison(both.title(), CHANNELS_LAST, CONTIGUOUS, "img/s", speeds)
    facts = {**summary, "heap": both.heap, "layers": [result.record() for result in results]}
    return common.finish("profile_layers", args, [comparison], facts, layer_report.lines(results, summary))


if __name__ == "__main__":
    sys.exit(main())

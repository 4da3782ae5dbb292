"""What converting a tensor's memory format costs, where it costs nothing, and how many convolutions pay for it.

For each shape, given by --shape or met by the convolutions of -a ARCH: time and GB/s (read and written) of every way to
convert, from both formats. "no copy" is proven: the result begins at the same memory. Then the break-even: the
convolutions of that shape, timed in both formats, against a conversion of their input. Training counts the copy of the
gradient on its way back too. With --shape the convolution is 3x3, C to C channels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "scripts" / "bench")) if path not in sys.path]

import break_even  # noqa: E402
import common  # noqa: E402
import torch  # noqa: E402
from both_formats import (  # noqa: E402
    CHANNELS_LAST,
    FORMATS,
    BothFormats,
    add_machine_options,
    add_model_options,
)
from conversions import ShapeCosts  # noqa: E402
from layer_arms import time_layer  # noqa: E402
from layer_calls import LayerCase, TensorSpec, leaves_of, record_calls  # noqa: E402
from torch import nn  # noqa: E402

from trainer.distributed import Ranks  # noqa: E402
from trainer.environment import resolve_device, set_backends, set_threads  # noqa: E402
from trainer.errors import UserError  # noqa: E402
from trainer.heap import choose_heap, retain_heap  # noqa: E402
from trainer.memory_format import apply_to_model, resolve_memory_format  # noqa: E402

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Subject:
    """Convolutions to time: a model in each format, and the calls of its convolutions."""

    def __init__(self, title: str, device: torch.device, half: torch.dtype) -> None:
        self.title, self.device, self.half = title, device, half
        self.models: dict[str, nn.Module] = {}
        self.cases: list[LayerCase] = []
        self.heap: dict[str, Any] = {}


def of_model(args: argparse.Namespace) -> Subject:
    both = BothFormats(args)
    subject = Subject(both.title(), both.device, both.half)
    subject.models = {name: stepper.model for name, stepper in both.steppers.items()}
    images = both.images(CHANNELS_LAST)
    cases = record_calls(subject.models[CHANNELS_LAST], both.device, lambda: both.forward(CHANNELS_LAST, images))
    modules = subject.models[CHANNELS_LAST]
    subject.cases = [case for case in cases if isinstance(modules.get_submodule(case.names[0]), nn.Conv2d)]
    subject.heap = both.heap
    if not subject.cases:
        raise UserError(f"--arch {args.arch}: this model calls no Conv2d: give shapes with --shape N,C,H,W")
    return subject


def of_shapes(args: argparse.Namespace) -> Subject:
    """A 3x3 convolution for each shape, as a model of one module a shape."""
    device, dtype = resolve_device(args.device, 0), DTYPES[args.dtype]
    set_backends(device, deterministic=False, tf32=True)
    threads = set_threads(Ranks(), device)
    choice, why = choose_heap(args.cpu_heap, device.type, None, None)
    if choice == "retain" and not retain_heap():
        choice, why = "default", "the C library refused"
    heap = f", heap {choice} ({why}), {threads} threads" if device.type == "cpu" else ""
    subject = Subject(f"shapes given, {args.dtype}, {device.type}{heap}", device, dtype)
    subject.heap = {"choice": choice, "why": why}
    shapes = {"x".join(map(str, shape)): shape for shape in args.shape}
    for name in FORMATS:
        convolutions = nn.ModuleDict({key: nn.Conv2d(s[1], s[1], 3, padding=1) for key, s in shapes.items()})
        memory_format = resolve_memory_format(name == CHANNELS_LAST)
        subject.models[name] = apply_to_model(convolutions.to(device, dtype), memory_format)
    for key, shape in shapes.items():
        text = f"Conv2d({subject.models[CHANNELS_LAST].get_submodule(key).extra_repr()})"
        inputs: tuple[tuple[Any, ...], dict[str, Any]] = ((TensorSpec(shape, dtype, True),), {})
        subject.cases.append(LayerCase((key,), text, inputs, args.mode == "train", False, [key], 1))
    return subject


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.build_parser(__doc__, rounds=9, warmup_rounds=1, require=False)
    add = parser.add_argument
    add("-a", "--arch", help="the shapes its convolutions meet; any --arch of train.py")
    add("--shape", type=shape_of, action="append", metavar="N,C,H,W", help="a shape; may be given again")
    add("--dtype", choices=tuple(DTYPES), help="of --shape's tensors (float32)")
    add_model_options(parser, batch_size=16)
    add_machine_options(parser)
    add("--min-time-ms", type=common.at_least(0), default=20, metavar="MS", help="least time of a call a round (20)")
    args = parser.parse_args(argv)
    if (args.arch is None) == (args.shape is None):
        parser.error("give shapes with --shape N,C,H,W, or a model with -a ARCH: one of the two")
    if args.arch and args.dtype:
        parser.error("--dtype is for --shape; a model's precision is set with --opt-level and --amp-dtype")
    args.dtype = args.dtype or (None if args.arch else "float32")
    return args


def shape_of(text: str) -> tuple[int, ...]:
    """An argparse type: four whole numbers from 1 on."""
    parts = text.split(",")
    if len(parts) != 4 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(f"takes four whole numbers from 1 on, N,C,H,W, got {text!r}")
    return tuple(map(int, parts))


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("layout_cost", lambda: measure(argv))


def measure(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    subject = of_model(args) if args.arch else of_shapes(args)
    by_shape: dict[TensorSpec, list[LayerCase]] = {}
    for case in subject.cases:
        spec = leaves_of(case.inputs, TensorSpec)[0]
        by_shape.setdefault(TensorSpec(spec.shape, spec.dtype, False), []).append(case)
    lines, records = [subject.title], []
    timing = (args.rounds, args.warmup_rounds, args.min_time_ms / 1e3)
    for spec, cases in by_shape.items():
        costs = ShapeCosts(spec.shape, spec.dtype, subject.device)
        common.note(costs.title)
        costs.measure(*timing)
        results = [time_layer(subject.models, case, subject.half, subject.device, *timing) for case in cases]
        found = [break_even.break_even(costs, result) for result in results if result.times]
        lines += [*costs.lines(), *map(break_even.line, found)]
        lines += [f"  {r.case.label} {r.case.module}: not timed: {r.problem}" for r in results if r.problem]
        record = {"shape": list(spec.shape), "dtype": str(spec.dtype).removeprefix("torch.")}
        records.append({**record, "ways": [cost.record() for cost in costs.costs], "break_even": found})
    return common.finish("layout_cost", args, [], {"heap": subject.heap, "shapes": records}, lines)


if __name__ == "__main__":
    sys.exit(main())

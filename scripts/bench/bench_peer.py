"""Our train.py against another training script on the same folder, model, batch size and workers.

Whole processes take turns; images a second come from both logs (a line a step), warm-up steps left out. Ours runs with
the heap that train.py chooses; the peer with the default glibc heap, with one that keeps freed memory, or with each in
turn, so that the ratios show what the loop gives and what the allocator gives. --require is asked of the first.

  examples  pytorch/examples imagenet/main.py     timm  train.py of pytorch-image-models
  custom    anything else: --peer-args is its whole command line, where {arch} {batch} {workers} {data} {classes}
            {output} stand for ours, and --peer-regex has a group named `rate` (images a second) or `seconds` (a step)

timm runs without colour jitter and random interpolation, which neither we nor pytorch/examples do by default.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
import machine
from runs import EXAMPLES, OURS, TIMM, Speed, read_speed, run_process, train_command

from trainer.checks import OPT_LEVELS
from trainer.errors import UserError

KINDS = ("examples", "timm", "custom")
FLAGS = {
    "examples": "-a {arch} -b {batch} -j {workers} --epochs 1 -p 1",
    "timm": "--model {arch} -b {batch} -j {workers} --data-dir {data} --num-classes {classes} --epochs 1 --log-interval 1 "
    "--device {device} --output {output} --color-jitter 0 --train-interpolation bilinear",
    "custom": "",
}
PATTERNS = {"examples": EXAMPLES, "timm": TIMM, "custom": None}
TIMM_NAMES = {"mobilenet_v2": "mobilenetv2_100"}


def peer_command(args: argparse.Namespace, output: Path) -> list[str]:
    """The peer's command line; ``output``: a folder it may write into."""
    names = TIMM_NAMES if args.peer_kind == "timm" else {}
    values = {
        "arch": args.peer_arch or names.get(args.arch, args.arch),
        "batch": args.batch_size,
        "workers": args.workers,
        "data": args.data.resolve(),
        "classes": args.num_classes,
        "device": args.device,
        "output": output,
    }
    words = FLAGS[args.peer_kind].split()
    if args.peer_kind == "timm" and args.memory_format == "channels_last":
        words.append("--channels-last")
    words += args.peer_args
    for key, value in values.items():
        words = [word.replace(f"{{{key}}}", str(value)) for word in words]
    folder = [str(values["data"])] if args.peer_kind == "examples" else []
    return [args.peer_python, str(args.peer_script.resolve()), *words, *folder]


def our_command(args: argparse.Namespace, output: Path) -> list[str]:
    return train_command(
        *("-a", args.arch, "-b", args.batch_size, "-j", args.workers, "--num-classes", args.num_classes),
        *("--epochs", 1, "-p", 1, "--opt-level", args.opt_level, "--device", args.device),
        *("--channels-last", str(args.memory_format == "channels_last").lower(), "--output-dir", output / "run"),
        *(*args.our_args.split(), args.data.resolve()),
    )


class Arm:
    """Runs one side and keeps what each of its logs said; ``heap``: the glibc heap around it."""

    def __init__(
        self, args: argparse.Namespace, command: Callable[..., list[str]], pattern: re.Pattern[str], heap: str
    ) -> None:
        self._args = args
        self._command = command
        self._pattern = pattern
        self._env = machine.heap_environment(heap)
        if args.device == "cpu":
            self._env["CUDA_VISIBLE_DEVICES"] = ""  # pytorch/examples has no flag for it
        # A log that goes through a pipe must not wait in the peer's buffer, nor its last lines be lost.
        self._env["PYTHONUNBUFFERED"] = "1"
        self.speeds: list[Speed] = []

    def __call__(self) -> float:
        # Peers write checkpoints where they stand: into a folder that goes away.
        with tempfile.TemporaryDirectory() as folder:
            log = run_process(self._command(self._args, Path(folder)), self._env, Path(folder))
        speed = read_speed(log, self._pattern, self._args.batch_size, self._args.warmup_steps)
        self.speeds.append(speed)
        return speed.median if self._args.steady == "median" else speed.mean


def build_arms(args: argparse.Namespace) -> dict[str, Arm]:
    pattern = re.compile(args.peer_regex) if args.peer_regex else PATTERNS[args.peer_kind]
    assert pattern is not None, "parse() asks for --peer-regex"
    heaps = machine.HEAPS if args.peer_heap == "both" else (args.peer_heap,)
    peers = {f"peer, {heap} heap": Arm(args, peer_command, pattern, heap) for heap in heaps}
    return {"ours": Arm(args, our_command, OURS, "default"), **peers}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.build_parser(__doc__, rounds=3, warmup_rounds=0)
    add = parser.add_argument
    add("data", metavar="DIR", type=Path, help="folder with train/ and val/, see make_photos.py")
    add("--peer-script", type=Path, required=True, metavar="PATH", help="the other script")
    add("--peer-kind", choices=KINDS, help="whose flags and log it has (timm for a train.py, else examples)")
    add("--peer-python", default=sys.executable, metavar="PATH", help="the Python that runs it (this one)")
    add("--peer-arch", metavar="NAME", help="the peer's name of the model, where it differs from ours")
    add("--peer-heap", choices=(*machine.HEAPS, "both"), default="both", help="glibc heap of the peer (both)")
    add("--peer-regex", metavar="RE", help="finds a step's speed in its log")
    add("-a", "--arch", default="mobilenet_v2", help="model (mobilenet_v2)")
    add("-b", "--batch-size", type=common.at_least(2), default=16, metavar="N", help="images a step (16)")
    add("-j", "--workers", type=common.at_least(0), default=2, metavar="N", help="loader processes (2)")
    add("--num-classes", type=common.at_least(1), default=1000, metavar="N", help="outputs of both models (1000)")
    add("--opt-level", choices=OPT_LEVELS, default="O0", help="our precision (O0)")
    add(
        "--memory-format",
        choices=("channels_last", "contiguous_format"),
        default="channels_last",
        help="ours, and timm's",
    )
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where both train (cpu)")
    add("--warmup-steps", type=common.at_least(0), default=5, metavar="N", help="first steps of a run left out (5)")
    add(
        "--steady",
        choices=("median", "mean"),
        default="median",
        help="a run's figure: its median step, or images over time",
    )
    add(
        "--our-args",
        default="",
        metavar="FLAGS",
        help='more flags of ours, in one word: --our-args="--cpu-heap default"',
    )
    add(
        "--peer-args",
        nargs=argparse.REMAINDER,
        default=[],
        help="everything after this goes to the peer; must come last",
    )
    args = parser.parse_args(argv)
    args.peer_kind = args.peer_kind or ("timm" if args.peer_script.name == "train.py" else "examples")
    _check(args)
    return args


def _check(args: argparse.Namespace) -> None:
    if not args.peer_script.is_file():
        raise UserError(f"no script {args.peer_script}: --peer-script takes the path of the other script")
    for split in ("train", "val"):
        if not (args.data / split).is_dir():
            raise UserError(f"{args.data} has no {split}/ folder: scripts/bench/make_photos.py makes such a folder")
    if args.peer_kind == "examples" and args.num_classes != 1000:
        raise UserError(f"pytorch/examples always has 1000 outputs, got --num-classes {args.num_classes}: drop it")
    if args.peer_kind == "custom" and not args.peer_regex:
        raise UserError("--peer-kind custom needs --peer-regex, with a group named rate or seconds")
    try:
        groups = re.compile(args.peer_regex).groupindex if args.peer_regex else {"rate": 1}
    except re.error as error:
        raise UserError(f"--peer-regex is no regular expression: {error}") from error
    if not {"rate", "seconds"} & set(groups):
        raise UserError("--peer-regex needs a group named rate (images a second) or seconds (a step)")


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("bench_peer", lambda: measure(argv))


def measure(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    arms = build_arms(args)
    values = common.interleave(arms, args.rounds, args.warmup_rounds)
    title = f"{args.arch} b{args.batch_size} -j {args.workers}, {args.opt_level}, {args.memory_format}, {args.peer_kind} peer"
    peers = [name for name in arms if name != "ours"]
    comparisons = [
        common.Comparison(title, "ours", peer, "img/s", values, required=index == 0) for index, peer in enumerate(peers)
    ]
    speeds: dict[str, Any] = {name: [vars(speed) for speed in arm.speeds] for name, arm in arms.items()}
    lines = ["img/s of the median step / of all steady time, run by run:"]
    for name, arm in arms.items():
        counted = arm.speeds[args.warmup_rounds :]
        runs = ", ".join(f"{speed.median:.2f} / {speed.mean:.2f} ({speed.steps} steps)" for speed in counted)
        lines.append(f"  {name}: {runs}")
    return common.finish("bench_peer", args, comparisons, {"speeds": speeds, "commands": commands(args)}, lines)


def commands(args: argparse.Namespace) -> dict[str, list[str]]:
    """What ran, for the result file."""
    return {"ours": our_command(args, Path("OUTPUT")), "peer": peer_command(args, Path("OUTPUT"))}


if __name__ == "__main__":
    sys.exit(main())

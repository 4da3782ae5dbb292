#!/usr/bin/env python3
"""Kills a training at random moments until it is through, and compares what is left with an undisturbed run.

The same command, with --resume auto and without --output-dir, is typed again after each kill of all its processes.
Kills fall at random over the time the run takes undisturbed, so in start-up, in steps, in saves and in validation; a
run that is done before its kill counts as none, and the next round begins a new one. At the end of each round:

- weights and optimizer state must be bitwise those of the undisturbed run;
- each image must have been trained on exactly once an epoch in the history that survives: each start writes digests
  of the pixels that it hands to the model, a line a step (scripts/bench/drill_worker.py). Before each start the newest
  whole checkpoint says which step it goes on from; the steps of earlier starts behind that one are struck out, and what
  is left is counted. The steps struck out are those that were redone;
- all starts after the first save must have gone on in one run folder.

After each kill every checkpoint must be whole (the bytes of others are counted as lost), and the newest no older than before.
--signal SIGTERM stops the run instead, at random moments in training, and tells the time from signal to checkpoint.
Flags of train.py may follow after --. Exit code 3: something differs.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_HOMES = (str(ROOT), str(ROOT / "scripts" / "bench"))
sys.path[:0] = [path for path in _HOMES if path not in sys.path]

from common import Parser, run_to_exit_code  # noqa: E402
from drill_process import Start  # noqa: E402
from drill_round import Outcome, Round  # noqa: E402
from machine import describe_machine  # noqa: E402

from trainer.errors import EXIT_NON_FINITE, EXIT_OK, RunError, UserError  # noqa: E402

IMAGES = 250  # no multiple of a batch: the last step of an epoch is a short one
FLAGS = (
    f"-a resnet18 -b 8 --val-batch-size 2 --synthetic-size {IMAGES} --image-size 32 --num-classes 10 --epochs 2 --print-freq 1 "
    "--save-every-steps 5 --tensorboard false --resume auto"
)


def moment_of(start: Start, a_round: Round, steps_in_epoch: int) -> str:
    """What a run that was just killed was about."""
    fed = start.fed()
    if not fed:
        return "start-up"
    if a_round.saving():
        return "save"
    begun = len(a_round.history) + len(fed)
    return "validation or end of epoch" if begun % steps_in_epoch == 0 else "training"


def disturb(args: argparse.Namespace, calm: Round, longest: float, outcome: Outcome) -> None:
    """Rounds until there were ``args.kills`` disturbances, each to its end. ``longest``: seconds until one comes."""
    chance = random.Random(args.seed)
    steps_in_epoch = sum(epoch == 0 for epoch, _ in calm.history)
    while sum(outcome.kills.values()) < args.kills:
        outcome.rounds += 1
        a_round = Round(args.out / f"round_{outcome.rounds}", args.nproc_per_node, args.flags, outcome)
        code: int | None = None
        while code is None:
            start = a_round.start()
            last = sum(outcome.kills.values()) >= args.kills
            if args.signal == signal.SIGTERM and not last:
                start.wait_until_fed()
            code = start.wait() if last else start.wait(chance.uniform(0, longest))
            if code is None and last:
                start.kill()
                raise RunError(f"a start did not end: {start.log_tail()}")
            if code is None:
                code = stop(start, a_round, args.signal, steps_in_epoch, outcome)
            a_round.ended(start)
            if code:
                raise RunError(f"a start ended with exit code {code}: {start.log_tail()}")
        outcome.faults += a_round.faults(calm)


def stop(start: Start, a_round: Round, kind: signal.Signals, steps_in_epoch: int, outcome: Outcome) -> int | None:
    """Kill or signal it; None where the run is to be started again, 0 where it is done."""
    sent = time.time()
    if kind == signal.SIGKILL:
        start.kill()
    else:
        start.send(kind)
        if start.wait() is None:
            start.kill()
            raise RunError(f"a start did not end at {kind.name}: {start.log_tail()}")
    if a_round.done():  # nothing was left to do but to end the process
        return 0
    outcome.count(moment_of(start, a_round, steps_in_epoch))
    if kind == signal.SIGTERM:
        # The time of its rename, after it was verified.
        saved = max((path.stat().st_ctime for path in a_round.folder.glob("runs/*/checkpoints/last.pt")), default=0.0)
        outcome.seconds.append(saved - sent)
        if saved < sent:
            outcome.faults.append(f"{a_round.folder.name}: no checkpoint after {kind.name}")
    return None


def report(args: argparse.Namespace, outcome: Outcome, took: float) -> list[str]:
    total = sum(outcome.kills.values())
    where = ", ".join(f"{count} in {name}" for name, count in sorted(outcome.kills.items()))
    lines = [
        f"{total} x {args.signal.name} survived ({where}), {args.nproc_per_node} process(es), seed {args.seed}: {outcome.rounds} "
        f"rounds, {outcome.starts} starts; undisturbed the run takes {took:.1f} s",
        f"steps redone {outcome.steps_redone}, bytes lost {outcome.bytes_lost}",
    ]
    if outcome.seconds:
        lines.append(
            f"from signal to checkpoint: median {statistics.median(outcome.seconds):.2f} s, longest {max(outcome.seconds):.2f} s"
        )
    passed = not outcome.faults and not outcome.bytes_lost
    good = "final weights and optimizer state bitwise those of the undisturbed run; 0 images lost, 0 repeated"
    return [*lines, *outcome.faults, *([good] if passed else [])]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--kills", type=int, default=20, metavar="N", help="how often the run is disturbed (20)")
    add("--nproc-per-node", type=int, default=1, metavar="N", help="processes; under torchrun if more than one (1)")
    add("--signal", choices=("SIGKILL", "SIGTERM"), default="SIGKILL", help="what disturbs it (SIGKILL)")
    add("--seed", type=int, default=0, metavar="N", help="of the moments (0)")
    add("--out", type=Path, metavar="DIR", help="keep the runs in this new folder")
    add("--json", type=Path, metavar="FILE", help="write the outcome as JSON too")
    add("flags", nargs="*", metavar="-- FLAGS", help="more flags of train.py")
    args = parser.parse_args(argv)
    if args.kills < 1 or args.nproc_per_node < 1:
        raise UserError("--kills and --nproc-per-node must be at least 1")
    if args.out and args.out.exists():
        raise UserError(f"--out {args.out} is there already: name a new folder")
    args.signal = signal.Signals[args.signal]
    args.flags = [*FLAGS.split(), *args.flags]
    return args


def drill(args: argparse.Namespace) -> int:
    outcome = Outcome()
    calm = Round(args.out / "undisturbed", args.nproc_per_node, args.flags, Outcome())
    began = time.monotonic()
    start = calm.start()
    start.wait_until_fed()
    fed = time.monotonic()
    code = start.wait()
    took = time.monotonic() - began
    if code != 0:
        start.kill()
        raise RunError(f"the undisturbed run ended with exit code {code}: {start.log_tail()}")
    calm.ended(start)
    outcome.faults += calm.faults(calm)
    # A SIGTERM comes after the start-up.
    disturb(args, calm, took if args.signal == signal.SIGKILL else began + took - fed, outcome)
    print("\n".join(report(args, outcome, took)), flush=True)
    if args.json:
        command = [Path(__file__).name, *sys.argv[1:]]
        record = {**asdict(outcome), "took_s": took, "command": command, "machine": describe_machine()}
        args.json.write_text(json.dumps(record, indent=1, default=str) + "\n")
    return EXIT_NON_FINITE if outcome.faults or outcome.bytes_lost else EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    def run() -> int:
        args = parse(argv)
        if args.out:
            args.out = args.out.absolute()
            return drill(args)
        with tempfile.TemporaryDirectory(prefix="drill_") as folder:
            args.out = Path(folder)
            return drill(args)

    return run_to_exit_code("drill", run)


if __name__ == "__main__":
    sys.exit(main())

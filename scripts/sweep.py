#!/usr/bin/env python3
"""Channels-last against contiguous for one model after another, into one table. See --help and docs/comparing.md.

python scripts/sweep.py --models tutorial-cpu --in-process --mode both -- -b 8 --synthetic-size 64
python scripts/sweep.py --from runs/sweep --table docs/results/cpu.md
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "scripts"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from ab import settings as ab_settings  # noqa: E402
from ab import sweep_plan, sweep_record, sweep_table  # noqa: E402
from ab.child import Measure, start_children  # noqa: E402
from ab.live import say  # noqa: E402
from ab.measuring import duration  # noqa: E402
from ab.sweep_plan import Key, Plan  # noqa: E402
from ab.sweep_record import SweepRecord  # noqa: E402

from trainer.errors import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_NON_FINITE, EXIT_OK, RunError  # noqa: E402
from trainer.one_line import one_line  # noqa: E402
from trainer.streams import keep_printing  # noqa: E402


def main(argv: Sequence[str] | None = None, measure: Measure | None = None) -> int:
    """Sweep; returns the exit code. ``measure``: how a comparison is run (tests run it in this process)."""
    keep_printing()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        ours, flags = ab_settings.split_command(words)
        args = sweep_plan.build_parser().parse_args(ours)
        if args.redraw:
            return code_of(conclude([Path(name) for name in args.redraw], args))
        plan = sweep_plan.read_plan(args, flags)
        folder = Path(args.output_dir or f"runs/sweep-{time.strftime('%Y%m%d-%H%M%S')}")
        folder.mkdir(parents=True, exist_ok=True)
        record = SweepRecord.open(folder, plan, shlex.join(["python", "scripts/sweep.py", *words]))
        code = sweep(plan, record, args.max_minutes, measure or start_children())
        conclude([folder], args)
        return code
    except RunError as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr, flush=True)
        return error.exit_code


def sweep(plan: Plan, record: SweepRecord, max_minutes: float | None, measure: Measure) -> int:
    """Every measurement that is not there yet and fits; returns the exit code."""
    began, work = time.perf_counter(), sweep_plan.work_of(plan.models)
    keys = plan.keys(work)
    record.ask(keys)
    todo = [key for key in keys if not record.measured(key)]
    say(f"{len(todo)} measurements to do, {len(keys) - len(todo)} there already, in {record.folder}")
    try:
        for place, key in enumerate(todo):
            expected = sweep_plan.expected_seconds(key, record.seconds(), work)
            passed = time.perf_counter() - began
            if max_minutes is not None and passed + expected > 60 * max_minutes:
                say(
                    f"{' '.join(key)}: not run: about {duration(expected)} more would pass --max-minutes {max_minutes:g}"
                )
                continue
            row = one(key, plan, record.folder, measure)
            record.add(row)
            left = sum(sweep_plan.expected_seconds(later, record.seconds(), work) for later in todo[place + 1 :])
            say(f"{told(row)}   {duration(row['seconds'])}" + (f", left {duration(left)}" if left else ""))
            if row["state"] == "interrupted":
                return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    # Those of an earlier call too: the same command again says the same.
    return code_of([row for row in record.content["rows"] if sweep_record.key_of(row) in keys])


def code_of(rows: Sequence[Mapping[str, Any]]) -> int:
    """The exit code for what was found."""
    if any(row["state"] == "failed" for row in rows):
        return EXIT_ERROR
    return EXIT_NON_FINITE if any(row.get("kind") == "different results" for row in rows) else EXIT_OK


def one(key: Key, plan: Plan, parent: Path, measure: Measure) -> dict:
    """One comparison; an interrupted one goes on, what another attempt left is removed."""
    model, mode, setting = key
    folder = parent / mode / setting / model.replace(":", "_")
    if sweep_record.was_interrupted(folder):
        words = ["--resume", str(folder), "--no-plots"]
    else:
        words = plan.words(key, str(folder))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    log, began = folder / "log.txt", time.perf_counter()
    code = measure(words, log)
    return sweep_record.read_row(key, folder, log, code, time.perf_counter() - began)


def told(row: dict) -> str:
    name = f"{row['model']} {row['mode']} {row['setting']}"
    if row["state"] != "measured":
        return f"{name}: {row['state']}: {row['reason']}"
    interval = f" ({row['low']:.2f} to {row['high']:.2f})" if row["high"] is not None else ""
    return f"{name}: {row['kind']}, {row['value']:.2f}{interval}"


def conclude(folders: Sequence[Path], args: Namespace) -> list[dict]:
    """The table and charts of all rows, in the first folder and where --table says; returns the rows."""
    from ab.sweep_plots import draw_modes

    contents = sweep_record.without_replaced([sweep_record.load(folder) for folder in folders])
    rows = [row for content in contents for row in content["rows"]]
    for path in [folders[0] / "sweep.md", *([Path(args.table)] if args.table else [])]:
        path.parent.mkdir(parents=True, exist_ok=True)
        pictures = draw_modes(rows, path.parent, path.stem)
        path.write_text(sweep_table.markdown(contents, pictures), encoding="utf-8")
        say(f"table: {path}")
    return rows


if __name__ == "__main__":
    sys.exit(main())

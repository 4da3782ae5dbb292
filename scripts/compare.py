#!/usr/bin/env python3
"""Measure arms of train.py against each other and say what the figures allow to say. See --help and docs/comparing.md.

python scripts/compare.py -- -a resnet50 --b 200 --opt-level O2 DIR       # contiguous against channels_last
python scripts/compare.py --arm "eager:" --arm "compiled: --compile" -- -a resnet50 --b 64
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "scripts"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from ab import arms as ab_arms  # noqa: E402
from ab import measuring, process, settings, verdict  # noqa: E402

from trainer.errors import EXIT_INTERRUPTED, EXIT_NON_FINITE, EXIT_OK, RunError, UserError  # noqa: E402
from trainer.heap import ask_for_huge_pages  # noqa: E402
from trainer.one_line import one_line  # noqa: E402
from trainer.run_folder import write_atomically  # noqa: E402
from trainer.streams import keep_printing  # noqa: E402


def main(argv: Sequence[str] | None = None, start: process.Start | None = None) -> int:
    """Compare; returns the exit code. ``start``: how a run is started (tests run it in this process)."""
    keep_printing()
    try:
        words, flags = settings.split_command(sys.argv[1:] if argv is None else argv)
        args = settings.build_parser().parse_args(words)
        settings.check_alone(args, flags)
        if args.redraw is not None:
            path = Path(args.redraw)
            folder = Path(args.output_dir) if args.output_dir else path.parent
            folder.mkdir(parents=True, exist_ok=True)
            return conclude(load(path), folder, plots=not args.no_plots)
        return measure(args, words, flags, start)
    except RunError as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr, flush=True)
        return error.exit_code


def measure(args: Any, words: Sequence[str], flags: Sequence[str], start: process.Start | None) -> int:
    """Run what is not done yet, then judge and report, however it ended. Raises RunError."""
    if args.resume is not None:
        folder = Path(args.resume)
        content = taken_up(folder, args)
    else:
        asked = settings.read_settings(args, flags)
        found = ab_arms.parse_arms(asked.arms or ab_arms.DEFAULT_ARMS, asked.common)
        if asked.in_process:
            ab_arms.check_in_process(found)
        folder = Path(args.output_dir or f"runs/compare-{time.strftime('%Y%m%d-%H%M%S')}")
        if (folder / measuring.FILE).exists():
            raise UserError(
                f"{folder} holds a comparison already: go on with --resume {folder}, or give another --output-dir"
            )
        folder.mkdir(parents=True, exist_ok=True)
        content = measuring.new_content(asked, found, words, flags)
    running = open_measuring(folder, content, start)
    with term_interrupts() as ended_by:
        try:
            code = running.run()
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        except Exception as error:
            if isinstance(error, UserError) and not content["runs"]:
                (folder / measuring.FILE).unlink(missing_ok=True)  # the corrected command may take the same folder
                raise
            code = running.broke(error)
        running.save({EXIT_OK: "done", EXIT_INTERRUPTED: "interrupted"}.get(code, "failed"))
        try:
            judged = conclude(content, folder, plots=not args.no_plots)
        except KeyboardInterrupt:  # of somebody who will not wait for the pictures
            code, judged = EXIT_INTERRUPTED, EXIT_OK
    if code == EXIT_INTERRUPTED:
        print(f"interrupted: python scripts/compare.py --resume {folder} goes on", file=sys.stderr, flush=True)
        return ended_by.get("code", code)
    return code or judged


@contextlib.contextmanager
def term_interrupts() -> Iterator[dict[str, int]]:
    """SIGTERM does here what Ctrl-C does, so that no run is left behind; yields where the exit code of that is kept."""
    ended_by: dict[str, int] = {}
    if threading.current_thread() is not threading.main_thread():  # where no handler may be set
        yield ended_by
        return

    def interrupt(number: int, frame: object) -> None:
        ended_by["code"] = 128 + number
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield ended_by
    finally:
        signal.signal(signal.SIGTERM, before)


def taken_up(folder: Path, args: Any) -> dict[str, Any]:
    """The record in ``folder``, to go on with. Raises UserError."""
    settings.check_numbers(vars(args))
    content = load(folder / measuring.FILE)
    begun = max((run["round"] + 1 for run in content["runs"]), default=0)
    if args.rounds is not None and args.rounds < begun:
        raise UserError(
            f"{begun} rounds were measured or begun already, so --rounds {args.rounds} is too few: "
            f"--from {folder / measuring.FILE} judges what is there"
        )
    # Both arms of a round have to have met the same machine at about the same time.
    done = verdict.done_by_arm(content).values()
    whole = [run for run in content["runs"] if all(run["round"] in runs for runs in done)]
    if len(whole) < len(content["runs"]):
        print("note: the round that was begun is measured again, so that its arms are of one time", flush=True)
    content["runs"] = whole
    content.pop("failure", None)
    content["state"] = "running"
    given = {key: getattr(args, key) for key in ("rounds", "max_minutes")}
    content["settings"].update({key: value for key, value in given.items() if value is not None})
    return content


def open_measuring(folder: Path, content: dict[str, Any], start: process.Start | None) -> measuring.Measuring:
    """Fresh processes, or all arms in this one."""
    if not content["settings"].get("in_process"):
        from ab.runner import Runner

        return Runner(folder, content, start or process.start_process(content["settings"]["nproc_per_node"]))
    if "hugepages" in content["common"]:
        ask_for_huge_pages()  # before torch comes in
    from ab.together import Together

    return Together(folder, content)


def conclude(content: dict[str, Any], folder: Path, plots: bool = True) -> int:
    """Verdicts, pictures and reports of what was measured; 3 where an arm's results differ."""
    from ab.board import write_layout
    from ab.report import write_reports

    verdicts = verdict.judge(content)
    content["verdicts"] = [one.record() for one in verdicts]
    write_atomically(folder / measuring.FILE, json.dumps(measuring.plain(content), indent=1) + "\n")
    pictures = []
    if plots:
        from ab.plots import draw_all

        pictures = draw_all(content, verdicts, folder)
    page = write_reports(content, verdicts, pictures, folder)
    curves = ""
    if not content["settings"].get("in_process"):  # which leaves no run folders with curves
        write_layout(folder)
        curves = f"   curves: tensorboard --logdir {folder}"
    print(f"report: {page}{curves}")
    for one in verdicts:
        print(f"results: {one.results.text}")
        print(f"verdict: {one.sentence}", flush=True)
    return EXIT_NON_FINITE if any(one.kind == "different results" for one in verdicts) else EXIT_OK


def load(path: Path) -> dict[str, Any]:
    """A comparison.json. Raises UserError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        missing = {"arms", "runs", "settings", "common", "probes"} - content.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is no comparison.json that can be read: {error}") from None
    if missing:
        raise UserError(f"{path} is no comparison.json: it lacks {', '.join(sorted(missing))}")
    return content


if __name__ == "__main__":
    sys.exit(main())

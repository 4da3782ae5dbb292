"""Resize all images below SRC once, into DST: the same folders, JPEGs whose shorter side is at most --short-side pixels.

Everything is written as JPEG. Names stay, but a suffix other than .jpg or .jpeg becomes .jpg (x.png -> x.jpg; where that
name is taken, x.png.jpg). Small baseline JPEGs are copied byte for byte. Resizing: the JPEG decoder's own halving, then
Pillow's LANCZOS. The EXIF orientation and the ICC profile are kept, other metadata is not.

Links to files and to folders outside SRC are followed; a link to a folder inside SRC becomes such a link in DST.

SRC is only read. The same command again goes on where the last one stopped: what is there and was made from the file as
it still is (size, times, inode) is skipped. What has lost its source stays and is counted, --prune removes it, and it
alone. Unreadable images are listed in DST/bad_images.txt, and the exit code is then 5.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path, PurePath

ROOT = Path(__file__).resolve().parent.parent
_HOMES = (str(ROOT), str(ROOT / "scripts"), str(ROOT / "scripts" / "bench"))
sys.path[:0] = [path for path in _HOMES if path not in sys.path]

from common import Parser, at_least, note, run_to_exit_code  # noqa: E402
from prepared import (  # noqa: E402
    claim,
    find_stale,
    make_folders,
    make_links,
    read_record,
    remove_stale,
    write_text,
)
from resize_image import Job, Outcome, Work, WriteError, prepare  # noqa: E402

from data.listing import SUFFIXES, FolderError, list_images  # noqa: E402
from trainer.errors import EXIT_BAD_DATA, EXIT_ERROR, EXIT_OK, RunError, UserError  # noqa: E402
from trainer.one_line import printable  # noqa: E402

BAD = "bad_images.txt"
_JPEG = (".jpg", ".jpeg")
_BATCH = 20_000  # files handed to the workers at once
_SHOWN = 10  # bad files named on the terminal


def plan_names(names: Sequence[str], links: Iterable[str] = ()) -> list[str]:
    """Each file's name below DST, all different, whatever order they are made in, and no folder's or link's."""
    wished = [name if name.lower().endswith(_JPEG) else os.path.splitext(name)[0] + ".jpg" for name in names]
    wishes = Counter(wished)
    folders = {PurePath(folder) for folder in set(map(os.path.dirname, names))}
    wishes.update({str(path) for folder in folders for path in (folder, *folder.parents)} | set(links))
    taken = {name for name in names if name.lower().endswith(_JPEG)}
    planned = []
    for name, wish in zip(names, wished, strict=True):
        if name != wish and wishes[wish] > 1:
            wish = name + ".jpg"
            while wish in taken or wish in wishes:
                wish += ".jpg"
            taken.add(wish)
        planned.append(wish)
    return planned


def check_folders(source: Path, out: Path) -> None:
    """Refuse a DST whose files could lie in SRC. Raises UserError."""
    if not source.is_dir():
        raise UserError(f"no folder {source}: SRC must hold the images")
    here, there = os.path.realpath(source), os.path.realpath(out)
    if os.path.commonpath([here, there]) in (here, there):
        raise UserError(f"{out} and {source} lie one in the other: name a DST apart from SRC, which is never changed")


def outcomes(work: Work, jobs: Iterator[Job], workers: int) -> Generator[Outcome, None, None]:
    """Do all jobs, in parallel with more than one worker; in the jobs' order. Raises WriteError, RunError."""
    if workers == 1:
        yield from map(partial(prepare, work), jobs)
        return
    # Started afresh rather than forked: nothing of this process's threads and locks goes along.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _follow_parent)
    try:
        while some := list(islice(jobs, _BATCH)):  # all at once would hold a million jobs in memory
            # Workers inherit the mask: Ctrl-C reaches all processes, and the first one alone acts on it.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                results = pool.map(partial(prepare, work), some, chunksize=max(1, min(16, len(some) // (4 * workers))))
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            yield from results
    except BrokenProcessPool as error:
        raise RunError(
            "a worker was ended from outside, for lack of memory perhaps: start again, with fewer --workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _follow_parent() -> None:
    """End a worker whose parent was killed: it would wait for work for ever."""
    parent = parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(EXIT_ERROR)

    threading.Thread(target=wait, daemon=True).start()


def with_bar(items: Iterator[Outcome], total: int) -> Iterable[Outcome]:
    """A progress bar where tqdm is installed and a person looks."""
    if not sys.stderr.isatty():
        return items
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    return tqdm(items, total=total, unit="image", smoothing=0.05)


def run(args: argparse.Namespace) -> int:
    """Prepare the folder; 5 where images were bad. Raises UserError, RunError."""
    source, out = Path(args.source), Path(args.out)
    check_folders(source, out)
    try:
        names, links, ignored = list_images(str(source))
        if not names:
            raise UserError(f"no image below {source}: files must end in {', '.join(sorted(SUFFIXES))}")
        targets = plan_names(names, links)
        claim(out, {"source": os.path.realpath(source), "short_side": args.short_side, "quality": args.quality})
        if ignored:
            note(f"left out: {', '.join(f'{count} {kind}' for kind, count in sorted(ignored.items()))}")
        made = read_record(out)
        stale = find_stale(out, made, {*targets, *links})
        if args.prune and stale:
            remove_stale(out, made, stale)
        make_folders(out, targets)
        make_links(out, links, made)
        jobs = (Job(name, target, made.get(target)) for name, target in zip(names, targets, strict=True))
        work = Work(source, out, args.short_side, args.quality)
        with contextlib.closing(outcomes(work, jobs, args.workers or default_workers())) as done:
            code = report(out, with_bar(done, len(names)))
        say_stale(out, stale, args.prune)
        return code
    except FolderError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"cannot prepare {out} ({error}): mend that and start again, it goes on") from error
    except WriteError as error:
        raise UserError(f"cannot write {error}: make room or allow it and start again, it goes on") from error


def report(out: Path, done: Iterable[Outcome]) -> int:
    """Count what is done, name the bad files here and in DST; the exit code."""
    lines: list[str] = []
    counts: Counter[str] = Counter()
    before = after = 0
    for outcome in done:
        counts[outcome.state] += 1
        before, after = before + outcome.before, after + outcome.after
        if outcome.state == "bad":
            lines.append("\t".join((outcome.name.replace("\n", "\\n"), outcome.reason)))
    if lines:
        write_text(out / BAD, "\n".join(lines) + "\n")
        for line in lines[:_SHOWN]:
            note(printable("bad: " + line.replace("\t", ": ")))
        note(f"{counted(len(lines), 'bad image')} listed in {out / BAD}")
    else:
        (out / BAD).unlink(missing_ok=True)
    shown = ", ".join(f"{counts[state]} {state}" for state in ("written", "copied", "skipped", "bad"))
    print(f"{out}: {shown}; {before} bytes before, {after} after ({after / max(before, 1):.1%})")
    return EXIT_BAD_DATA if lines else EXIT_OK


def say_stale(out: Path, stale: Sequence[str], pruned: bool) -> None:
    """What of DST has lost its source, and what became of it."""
    if stale and pruned:
        note(f"removed {counted(len(stale), 'file')} without a source, such as {stale[0]}")
    elif stale:
        files = counted(len(stale), "file")
        note(f"{files} of {out} without a source any more, such as {stale[0]}: --prune removes such files")


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def default_workers() -> int:
    """The cores this process may use."""
    from trainer.hardware import usable_cores  # brings torch, which the workers do without

    return usable_cores()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("source", metavar="SRC", help="folder with images in any folders below; it is only read")
    add("out", metavar="DST", help="new folder, or that of an earlier run of the same command")
    add("--short-side", type=at_least(1), default=256, metavar="N", help="most pixels of the shorter side (256)")
    add("--quality", type=at_least(1), default=92, metavar="Q", help="JPEG quality, 1 to 95 (92)")
    add("--prune", action="store_true", help="remove from DST what was made from files that SRC no longer holds")
    add("--workers", type=at_least(1), metavar="N", help="processes (default: the usable cores)")
    args = parser.parse_args(argv)
    if args.quality > 95:
        parser.error(f"--quality takes a number up to 95, got {args.quality}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare what ``argv`` (default: the command line) names; the exit code: 2 the user's mistake, 5 bad images."""
    return run_to_exit_code("prepare_folder", lambda: run(parse(argv)))


if __name__ == "__main__":
    sys.exit(main())

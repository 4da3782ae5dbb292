#!/usr/bin/env python3
"""Train an image classifier: parse, build, fit, close. See README.md and ``train.py --help``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trainer.cli import Request, parse
from trainer.config import TrainConfig, pick
from trainer.exits import Session, run_to_exit_code
from trainer.heap import ask_for_huge_pages


def main(argv: Sequence[str] | None = None, loader_wrapper: Callable[[Any], Any] | None = None) -> int:
    """Run one training; returns the exit code (0 done; the others are in ``trainer.errors``).

    ``loader_wrapper``: given the training loader, returns what the loop is to read instead.
    """
    return run_to_exit_code(lambda session: run(parse(argv), session, loader_wrapper))


def run(
    request: Request, session: Session, loader_wrapper: Callable[[Any], Any] | None = None
) -> tuple[str, str | None]:
    """The run itself; returns its state (done or preempted) and why it ended."""
    session.show_traceback = request.config.traceback
    # Of a resumed run only the command line counts here: its checkpoint is read with torch, which is too late.
    if request.config.cpu_heap == "hugepages":
        ask_for_huge_pages()
    look_at_folder(request.config)
    # torch comes in here and below, so that --help and a mistyped flag or folder are answered at once.
    import data_commands
    from data.build import DataOptions, LoaderOptions, contents_of, open_loaders, open_sources, still_bad_of
    from data.feed import FeedOptions
    from trainer import banner, begin, build, finish, resolve, resume, resumed_data, summary
    from trainer.bad_images import BadImages
    from trainer.memory_format import resolve_memory_format
    from trainer.run_log import Console

    data_commands.refuse_launchers(request.config)
    if request.config.check_data:
        return data_commands.check_data(request.config)
    asked = request.config
    group, threads = build.open_group(asked.device, asked.deterministic, asked.tf32, session, asked.dist_timeout)
    console = Console(group.is_main)
    start = resume.find_start(request, group)
    indexes = group.on_main(lambda: find_images(start.config))
    config, notices = resolve.resolve_config(
        start.config, group.device, group.ranks, indexes and len(indexes[0].classes), start.saved_resolved
    )
    sources = open_sources(indexes, pick(DataOptions, config))
    classes, sizes = sources[0].classes, {"train": len(sources[0]), "val": len(sources[1])}
    if config.bench_data:
        return data_commands.bench_data(sources[0], config, group, sizes)
    resumed_data.check_data(start, config, classes, contents_of(indexes, sources))
    # Model -> SyncBN -> device -> memory format -> precision -> optimizer -> DDP -> compile -> average.
    banner.say_request(console, start.config, config, group.device, threads)
    built = build.build_stepper(config, group, new_weights=start.checkpoint is None, train_images=sizes["train"])
    stepper = built.stepper
    config = config.replace(cpu_heap=built.heap["choice"], channels_last=built.channels_last)
    banner.say_precision(console, stepper.precision, stepper.model, config.image_size or 0)
    if config.summary:
        return summary.say_summary(config, built, console)
    memory_format = resolve_memory_format(config.channels_last)
    feed = FeedOptions(group.device, config.mean or (), config.std or (), stepper.precision.input_dtype, memory_format)
    stepper.bad_images = BadImages(group, config.bad_images, config.max_bad_images, sizes, still_bad_of(sources))
    share = group.ranks.rank, group.world_size
    train, val = open_loaders(sources, pick(LoaderOptions, config), share, feed, stepper.bad_images.found)
    if not config.evaluate:
        refuse_no_step(train.steps_in_epoch, sizes["train"], group.world_size)
    train = train if loader_wrapper is None else loader_wrapper(train)
    banner.say_heap(console, config, built.heap)
    banner.say_data(console, config, *sources, train.sampler.dropped)
    schedule, lr_line = build.build_schedule(config, train.sampler.global_batch_size, train.steps_in_epoch)
    progress, more = begin.begin(start, stepper, group, config)
    for line in [*request.notices, *start.lines, *built.lines, lr_line, *notices, *more]:
        console.say(line)
    facts = begin.checkpoint_facts(start, config, classes, train.sampler.global_batch_size)
    engine = begin.open_engine(start, config, built, schedule, progress, facts, console, session)
    if config.evaluate:
        return finish.evaluate(engine, val, config, session)
    return finish.fit(engine, train, val, config, session)


def refuse_no_step(steps: int, images: int, ranks: int) -> None:
    """Raise UserError, on every rank, where an epoch would have no step."""
    from trainer.errors import UserError

    if not steps:
        raise UserError(f"{images} training images are too few: a step needs two for each of {ranks} ranks", True)


def look_at_folder(config: TrainConfig) -> None:
    """Of several processes, the first says it later, once; --check-data finds out more. Raises UserError."""
    if config.data_dir is None or config.check_data or os.environ.get("WORLD_SIZE", "1") != "1":
        return
    from data.folder import check_dir

    with folder_errors_told():
        check_dir(config.data_dir)


def find_images(config: TrainConfig) -> Any:
    """The indexes of both splits; None without DIR or shards. Raises UserError."""
    from data.build import IndexOptions, open_indexes

    with folder_errors_told():
        return open_indexes(pick(IndexOptions, config))


@contextlib.contextmanager
def folder_errors_told() -> Iterator[None]:
    """What is wrong with DIR is the user's to mend."""
    from data.folder import FolderError
    from trainer.errors import UserError

    try:
        yield
    except FolderError as error:
        raise UserError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Train an image classifier: parse, build, fit, close. See README.md and ``train.py --help``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainer.cli import Request, parse
from trainer.exits import Session, run_to_exit_code

if TYPE_CHECKING:
    from data.loaders import Source, TrainLoader, ValLoader
    from trainer.config import TrainConfig
    from trainer.distributed import Group
    from trainer.precision import Precision


def main(argv: Sequence[str] | None = None) -> int:
    """Run one training; returns the exit code (0 done, 1 error, 2 the user's mistake, 3 non-finite)."""
    return run_to_exit_code(lambda session: run(parse(argv), session))


def run(request: Request, session: Session) -> tuple[str, str | None]:
    """The run itself; returns its state (done or preempted) and why it ended."""
    # torch comes in here and below, so that --help and a mistyped flag are answered at once.
    from trainer import banner, build, environment, finish, resume
    from trainer.engine import Engine, LoopOptions
    from trainer.profiling import StepProfiler
    from trainer.report import Reporter
    from trainer.run_log import Console
    from trainer.saver import CheckpointSaver

    session.show_traceback = request.config.traceback
    group, threads = build.open_group(request.config.device, request.config.deterministic, session)
    console = Console(group.is_main)
    start = resume.find_start(request, group)
    folder_set = group.on_main(lambda: scan_folder(start.config.data_dir))
    config, notices = environment.resolve_config(
        start.config, group.device, group.ranks, folder_set and len(folder_set[0].classes), start.saved_resolved
    )
    train_set, val_set = open_sources(config, folder_set)
    resume.check_classes(start, config, train_set.classes)

    # Model -> SyncBN -> device -> memory format -> precision -> optimizer -> DDP -> compile.
    banner.say_request(console, start.config, config, group.device, threads)
    stepper, lines = build.build_stepper(config, group, new_weights=start.checkpoint is None)
    banner.say_precision(console, start.config, stepper.precision, stepper.model)
    train, val = build_loaders(config, train_set, val_set, group, stepper.precision)
    banner.say_data(console, config, train_set, val_set, train.sampler.dropped)
    schedule, lr_line = build.build_schedule(config, train.sampler.global_batch_size, train.steps_in_epoch)
    progress, more = resume.begin(start, stepper, group, config)
    for line in [*start.lines, *lines, lr_line, *notices, *more]:
        console.say(line)
    folder = resume.open_folder(start, config, progress.step, group, session)
    facts = resume.checkpoint_facts(start.config, config, train_set.classes, train.sampler.global_batch_size)
    saver = CheckpointSaver(folder, group, stepper, facts)
    options = LoopOptions(
        config.epochs or 0,
        config.print_freq,
        config.timing_warmup_steps,
        config.stop_after_epochs,
        config.stop_after_steps,
    )
    profiler = StepProfiler(config.prof, folder, group.device)
    engine = Engine(stepper, schedule, group, options, Reporter(console, session.files, group), saver, profiler)
    engine.progress = progress

    if config.evaluate:
        return finish.evaluate(engine, val)
    banner.warn_of_memory(console, stepper.model, config, stepper.precision)
    return finish.fit(engine, train, val, config, session)


def scan_folder(data_dir: str | None) -> Any:
    """Index DIR/train and DIR/val; None without a folder. Raises UserError."""
    from data.folder import FolderError, scan_data_dir
    from trainer.errors import UserError

    try:
        return scan_data_dir(data_dir) if data_dir else None
    except FolderError as error:
        raise UserError(str(error)) from error


def open_sources(config: TrainConfig, folder_set: Any) -> tuple[Source, Source]:
    """Training and validation samples: the folder's, or made-up ones."""
    from data.loaders import FolderDataset
    from data.synthetic import build_synthetic
    from data.transforms import TrainTransform, ValTransform

    size, val_size, resize, interpolation = (
        config.image_size or 0,
        config.val_image_size or 0,
        config.val_resize or 0,
        config.interpolation or "",
    )
    if folder_set is None:
        return build_synthetic(
            config.synthetic_size, config.num_classes or 0, (size, val_size), config.seed, config.val_batch_size or 1
        )
    train_transform = TrainTransform(size, config.crop_scale, config.hflip, interpolation, config.seed)
    return FolderDataset(folder_set[0], train_transform), FolderDataset(
        folder_set[1], ValTransform(val_size, resize, interpolation)
    )


def build_loaders(
    config: TrainConfig, train_set: Source, val_set: Source, group: Group, precision: Precision
) -> tuple[TrainLoader, ValLoader]:
    """Loaders of this rank for both splits. Raises UserError for a set too small for one step."""
    from data.loaders import FeedOptions, TrainLoader, ValLoader
    from data.sampler import StepSampler
    from trainer.errors import UserError
    from trainer.memory_format import resolve_memory_format

    memory_format, workers = resolve_memory_format(config.channels_last), config.workers or 0
    feed = FeedOptions(group.device, config.mean or (), config.std or (), precision.input_dtype, memory_format)
    rank, ranks = group.ranks.rank, group.world_size
    sampler = StepSampler(
        len(train_set), config.batch_size, rank, ranks, config.grad_accum_steps, config.seed, config.steps_per_epoch
    )
    if not sampler.steps_in_epoch():
        raise UserError(
            f"{len(train_set)} training images are too few for {ranks} ranks: a step needs two images a rank", True
        )
    return TrainLoader(train_set, sampler, workers, feed), ValLoader(
        val_set, config.val_batch_size or 1, (rank, ranks), workers, feed
    )


if __name__ == "__main__":
    sys.exit(main())

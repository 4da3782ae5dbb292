"""The first act of a run: the checkpoint's state, the run folder, what checkpoints will hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer.build import Built
from trainer.checkpoint_folder import remove_leftovers
from trainer.config import KEYS, PER_START, TrainConfig, pick
from trainer.content import load_average, load_model, restore
from trainer.distributed import Group
from trainer.engine import Engine, LoopOptions
from trainer.errors import RunError, UserError, os_reason
from trainer.exits import Session
from trainer.gallery import Gallery
from trainer.layout_audit.hook import first_step_audit
from trainer.memory_format import memory_format_name, resolve_memory_format
from trainer.optim import LRSchedule
from trainer.profiling import StepProfiler
from trainer.report import Reporter
from trainer.resume import Start
from trainer.resumed_data import DATA
from trainer.rewind import Rewinder
from trainer.run_folder import RunFolder, new_run_path, open_run_folder, to_yaml
from trainer.run_log import Console, RunFiles
from trainer.run_state import Progress
from trainer.saver import CheckpointSaver, SaveOptions
from trainer.signals import StopSignals
from trainer.snapshot import snapshot
from trainer.step import Stepper
from trainer.step_times import StepTimes


def begin(start: Start, stepper: Stepper, group: Group, config: TrainConfig) -> tuple[Progress, list[str]]:
    """Load the checkpoint, if there is one; returns where the run stands and lines for the log."""
    content = start.checkpoint
    if content is None:
        blank = config.evaluate and not (config.weights or config.pretrained)
        lines = ["note: -e without --resume, --weights or --pretrained validates random weights"] if blank else []
        return Progress(epoch=config.start_epoch), lines
    if config.evaluate:
        load_model(content, stepper)
        if stepper.average is not None and not load_average(content, stepper.average):
            raise UserError(
                "--ema-eval: the checkpoint holds no average of the weights; it was trained without --model-ema", True
            )
        return Progress(epoch=max(0, content["epoch"] - 1), step=content.get("step", 0)), []
    progress, lines = restore(content, stepper, group)
    if config.start_epoch and config.resume != "auto":  # auto: the same command typed again
        lines.append(f"note: --start-epoch {config.start_epoch}: the checkpoint was at epoch {progress.epoch}")
        progress.start_epoch(config.start_epoch)
    old, new = content.get("global_batch_size"), config.batch_size * config.grad_accum_steps * group.world_size
    if old is not None and old != new:
        lines.append(
            f"note: the checkpoint's steps took {old} images, now {new}: the learning rate follows --lr-scaling {config.lr_scaling}"
        )
    if content["resolved"].get("epochs", config.epochs) != config.epochs:
        lines.append(
            f"note: --epochs {content['resolved']['epochs']} -> {config.epochs}: the learning rate's schedule is that of the new length"
        )
    return progress, lines


def open_folder(
    start: Start, config: TrainConfig, step: int, group: Group, session: Session, heap: dict[str, Any]
) -> Path | None:
    """Make or take the run folder; rank 0 names, locks and fills it, and alone gets its path."""
    resuming = start.folder is not None

    def open_on_main() -> str:
        path = start.folder or (Path(config.output_dir) if config.output_dir else None)
        name = memory_format_name(resolve_memory_format(config.channels_last))
        folder = open_run_folder(path or new_run_path(config.arch, config.opt_level or "", name), resuming)
        session.folder = folder
        remove_leftovers(folder.path)
        facts = {**snapshot(group.device, group.ranks), "cpu_heap": heap}
        try:
            folder.write_config(start.config, config)
            folder.write_environment(facts)
            folder.write_status("running")
            session.files = RunFiles(folder.path, config.tensorboard, step if resuming else None)
        except OSError as error:  # a disk that is full now may not be so when the run is started again
            raise RunError(f"cannot write into the run folder {folder.path}: {os_reason(error)}") from error
        session.files.add_later("config", to_yaml(config))
        session.files.add_later("environment", json.dumps(facts, indent=2))
        print(f"run folder {folder.path}", flush=True)
        return str(folder.path)

    path = Path(group.on_main(open_on_main))
    if not group.is_main and path.exists():
        session.folder = RunFolder(path, None)
    return path if group.is_main else None


def open_engine(
    start: Start,
    config: TrainConfig,
    built: Built,
    schedule: LRSchedule,
    progress: Progress,
    facts: dict[str, Any],
    console: Console,
    session: Session,
) -> Engine:
    """The loop with run folder, checkpoints and profiler around it; ``facts``: see ``checkpoint_facts``."""
    group, stepper = session.group, built.stepper
    # From here to the end of the process' work; before, a signal ends it at once, as there is nothing to save.
    session.signals = StopSignals()
    session.signals.install()
    folder = open_folder(start, config, progress.step, group, session, built.heap)
    if stepper.bad_images is not None:
        stepper.bad_images.keep_in(folder)
    profiler = StepProfiler(config.prof, folder, group.device)
    report = Reporter(console, session.files, group, None if config.synthetic else config.workers)
    session.saver = saver = CheckpointSaver(folder, group, stepper, facts, pick(SaveOptions, config), report)
    engine = Engine(stepper, schedule, group, pick(LoopOptions, config), report, saver, profiler)
    engine.progress = progress
    engine.boundary.signals = session.signals
    if config.tensorboard:
        engine.validation.gallery = Gallery(group, facts["classes"], config.mean or (), config.std or ())
    engine.validation.follows_average = config.ema_eval
    if config.rewind:
        engine.rewinder = Rewinder(folder, group, stepper, report)
    engine.step_times = StepTimes(config.step_times, folder, group, None if config.compile else stepper.model)
    engine.first_step = first_step_audit(config, stepper, console, session.files, folder, group)
    return engine


def checkpoint_facts(
    start: Start, config: TrainConfig, classes: Sequence[str], global_batch_size: int
) -> dict[str, Any]:
    """What a checkpoint holds beside the state: arch, settings, classes and their indices, marks of the data."""
    return {
        "arch": config.arch,
        "config": {key: getattr(start.config, key) for key in KEYS if key not in PER_START},
        "resolved": {key: getattr(config, key) for key in KEYS if key not in PER_START},
        "classes": list(classes),
        "class_to_idx": {name: index for index, name in enumerate(classes)},
        "global_batch_size": global_batch_size,
        DATA: start.contents,
    }

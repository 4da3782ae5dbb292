"""Where a run starts: from scratch, or from which checkpoint, in which folder, with which settings."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.checkpoint import read_checkpoint
from trainer.cli import Request, merge_with_checkpoint
from trainer.config import KEYS, PER_START, TrainConfig, flag_of
from trainer.distributed import Group
from trainer.engine import Progress
from trainer.environment import snapshot
from trainer.errors import LASTING, LastingError, UserError
from trainer.exits import Session
from trainer.memory_format import memory_format_name, resolve_memory_format
from trainer.run_folder import (
    LAST,
    find_resumable,
    new_run_path,
    newest_run,
    open_run_folder,
    read_json,
    run_of_checkpoint,
    to_yaml,
)
from trainer.run_log import RunFiles
from trainer.saver import load_model, restore
from trainer.step import Stepper


@dataclass
class Start:
    """``checkpoint``: content to go on from; ``folder``: the run folder to go on in, None for a new one."""

    config: TrainConfig
    checkpoint: dict[str, Any] | None = None
    path: Path | None = None
    folder: Path | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def saved_resolved(self) -> dict[str, Any]:
        return (self.checkpoint or {}).get("resolved", {})


def find_start(request: Request, group: Group) -> Start:
    """Decide on rank 0, read the file on every rank."""
    config = request.config
    if not config.resume:
        return Start(config)
    path, lines = group.on_main(lambda: _find_checkpoint(config))
    if path is None:
        return Start(config, folder=_existing_folder(config), lines=lines)
    content = read_checkpoint(path)
    merged = merge_with_checkpoint(request.given, content["config"])
    if not config.evaluate:
        _refuse_another_model(merged, content)
    lines = [*lines, f"=> loading checkpoint '{path}' (epoch {content.get('epoch', 0)})", *_changes(request, content)]
    folder = None if config.evaluate else _folder_to_go_on_in(config, path)
    return Start(merged, content, path, folder, lines)


def _find_checkpoint(config: TrainConfig) -> tuple[Path | None, list[str]]:
    assert config.resume is not None
    _end_a_pointless_restart(config)
    if config.resume != "auto":
        path = Path(config.resume)
        if path.is_dir():
            path = path / "checkpoints" / LAST if (path / "checkpoints").is_dir() else path / LAST
        read_checkpoint(path)
        return path, []
    if config.output_dir:
        path = Path(config.output_dir) / "checkpoints" / LAST
        found = path.exists()
        return (path if found else None), [] if found else [
            f"--resume auto: no checkpoint in {config.output_dir}, starting from scratch"
        ]
    run = find_resumable(config)
    if run is None:
        return None, [
            "--resume auto: no run below runs/ that is not done and asked for the same; starting from scratch"
        ]
    return run / "checkpoints" / LAST, [f"--resume auto: going on with {run}"]


def _end_a_pointless_restart(config: TrainConfig) -> None:
    """torchrun restarts a job that failed; one that failed for a reason that stays ends at once, with the same code."""
    if config.resume != "auto" or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
        return
    run = Path(config.output_dir) if config.output_dir else newest_run(config)
    status = read_json(run / "status.json") if run else {}
    if status.get("state") == "failed" and status.get("exit_code") in LASTING:
        raise LastingError(
            f"not restarted, since {run} failed for a reason that stays: {status.get('why')}", status["exit_code"]
        )


def _existing_folder(config: TrainConfig) -> Path | None:
    return Path(config.output_dir) if config.output_dir else None


def _folder_to_go_on_in(config: TrainConfig, checkpoint: Path) -> Path | None:
    own = run_of_checkpoint(checkpoint)
    if config.output_dir and (own is None or Path(config.output_dir).resolve() != own):
        return None
    return own


def _refuse_another_model(merged: TrainConfig, content: dict[str, Any]) -> None:
    saved = content["config"].get("arch")
    if saved is not None and merged.arch != saved:
        raise UserError(
            f"--arch {merged.arch}, but the checkpoint holds a {saved}: resume with its own, or start from --weights",
            True,
        )


def check_classes(start: Start, config: TrainConfig, classes: Sequence[str]) -> None:
    """The classes a run goes on with must be those it was trained on, by count and by name."""
    saved = (start.checkpoint or {}).get("classes")
    if saved is None:
        return
    count = start.saved_resolved["num_classes"]
    if count != config.num_classes:
        raise UserError(
            f"the checkpoint was trained on {count} classes, this run has {config.num_classes}: start from --weights instead",
            True,
        )
    if list(saved) != list(classes) and not config.synthetic:
        name = next((name for name in [*saved, *classes] if name not in saved or name not in classes), saved[0])
        raise UserError(
            f"the folder's classes are not those of the checkpoint (class {name!r}): its labels would mean something else",
            True,
        )


def begin(start: Start, stepper: Stepper, group: Group, config: TrainConfig) -> tuple[Progress, list[str]]:
    """Load the checkpoint, if there is one; returns where the run stands and lines for the log."""
    content = start.checkpoint
    if content is None:
        blank = config.evaluate and not (config.weights or config.pretrained)
        lines = ["note: -e without --resume, --weights or --pretrained validates random weights"] if blank else []
        return Progress(epoch=config.start_epoch), lines
    if config.evaluate:
        load_model(content, stepper)
        return Progress(epoch=max(0, content["epoch"] - 1), step=content.get("step", 0)), []
    progress, lines = restore(content, stepper, group)
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


def open_folder(start: Start, config: TrainConfig, step: int, group: Group, session: Session) -> Path | None:
    """Make or take the run folder; rank 0 names, locks and fills it, and alone gets its path."""
    resuming = start.folder is not None

    def open_on_main() -> str:
        path = start.folder or (Path(config.output_dir) if config.output_dir else None)
        name = memory_format_name(resolve_memory_format(config.channels_last))
        folder = open_run_folder(path or new_run_path(config.arch, config.opt_level or "", name), resuming)
        session.folder = folder
        folder.write_config(start.config, config)
        facts = snapshot(group.device, group.ranks)
        folder.write_environment(facts)
        folder.write_status("running")
        session.files = RunFiles(folder.path, config.tensorboard, step if resuming else None)
        session.files.add_later("config", to_yaml(config))
        session.files.add_later("environment", json.dumps(facts, indent=2))
        print(f"run folder {folder.path}", flush=True)
        return str(folder.path)

    path = group.on_main(open_on_main)
    return Path(path) if group.is_main else None


def checkpoint_facts(
    asked: TrainConfig, config: TrainConfig, classes: Sequence[str], global_batch_size: int
) -> dict[str, Any]:
    """What a checkpoint holds beside the state: arch, settings, classes and their indices."""
    return {
        "arch": config.arch,
        "config": {key: getattr(asked, key) for key in KEYS if key not in PER_START},
        "resolved": {key: getattr(config, key) for key in KEYS if key not in PER_START},
        "classes": list(classes),
        "class_to_idx": {name: index for index, name in enumerate(classes)},
        "global_batch_size": global_batch_size,
    }


def _changes(request: Request, content: dict[str, Any]) -> list[str]:
    lines = []
    saved = {
        **content.get("resolved", {}),
        **{key: value for key, value in content["config"].items() if value is not None},
    }
    for key, value in request.given.items():
        if key in PER_START or key not in saved:
            continue
        value = getattr(request.config, key)
        old = tuple(saved[key]) if isinstance(saved[key], list) else saved[key]
        if old != value and value is not None:
            lines.append(f"{flag_of(key)}: {_text(old)} -> {_text(value)}")
    return lines


def _text(value: Any) -> str:
    return " ".join(f"{item:g}" for item in value) if isinstance(value, tuple) else str(value)

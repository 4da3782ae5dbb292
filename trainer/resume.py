"""Where a run starts: from scratch, or from which checkpoint, in which folder, with which settings."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.checkpoint import read_checkpoint
from trainer.checkpoint_folder import newest_whole
from trainer.checks import flag_of
from trainer.cli import Request, merge_with_checkpoint
from trainer.config import PER_START, TrainConfig
from trainer.distributed import Group
from trainer.errors import LASTING, AlreadyDone, LastingError, UserError
from trainer.run_folder import (
    LAST,
    RUNS,
    asks_the_same,
    find_resumable,
    has_checkpoint,
    launcher_name,
    newest_run,
    read_json,
    run_of_checkpoint,
    run_of_this_launcher,
)


@dataclass
class Start:
    """``checkpoint``: content to go on from; ``folder``: the run folder to go on in, None for a new one."""

    config: TrainConfig
    checkpoint: dict[str, Any] | None = None
    path: Path | None = None
    folder: Path | None = None
    lines: list[str] = field(default_factory=list)
    contents: dict[str, Any] = field(default_factory=dict)  # of this start's data, see trainer.resumed_data

    @property
    def saved_resolved(self) -> dict[str, Any]:
        return (self.checkpoint or {}).get("resolved", {})


def find_start(request: Request, group: Group) -> Start:
    """Decide on rank 0, read the file on every rank."""
    config = request.config
    group.on_main(lambda: _end_a_pointless_restart(config))
    if not config.resume:
        return Start(config)
    read: list[dict[str, Any]] = []  # rank 0 reads while it decides

    def find() -> tuple[Path | None, Path | None, list[str]]:
        path, content, lines = _find_checkpoint(config)
        if path is None:
            return None, _folder_to_begin_in(config), lines
        read.append(read_checkpoint(path) if content is None else content)
        return path, None, lines

    path, folder, lines = group.on_main(find)
    if path is None:
        return Start(config, folder=folder, lines=lines)
    content = read[0] if read else read_checkpoint(path)
    # A validation reads running statistics: nothing to synchronise, and no CUDA needed for it.
    saved = {**content["config"], "sync_bn": False} if config.evaluate else content["config"]
    merged = merge_with_checkpoint(request.given, saved)
    if not config.evaluate:
        _refuse_another_model(merged, content)
        folder = _folder_to_go_on_in(config, path)
    lines = [*lines, f"=> loading checkpoint '{path}' (epoch {content.get('epoch', 0)})", *_changes(request, content)]
    return Start(merged, content, path, folder, lines)


Found = tuple[Path | None, dict[str, Any] | None, list[str]]


def _find_checkpoint(config: TrainConfig) -> Found:
    """The file to go on from, its content where that was read already, and lines for the log."""
    assert config.resume is not None
    if config.resume != "auto":
        given = Path(config.resume)
        if not given.is_dir():
            return given, None, []
        folder = given / "checkpoints" if (given / "checkpoints").is_dir() else given
        path, content, lines = newest_whole(folder)
        return path or folder / LAST, content, lines  # reading the latter tells what is wrong with it
    if config.evaluate:  # --output-dir is then the evaluation's own
        return _find_to_evaluate(config)
    if config.output_dir:
        folder = Path(config.output_dir)
        path, content, lines = newest_whole(folder / "checkpoints")
        if path is None:
            kind = "whole checkpoint" if has_checkpoint(folder) else "checkpoint"
            lines.append(f"--resume auto: no {kind} in {folder}, starting from scratch")
        return path, content, lines
    passed: list[str] = []
    for run in find_resumable(config):
        path, content, lines = newest_whole(run / "checkpoints")
        passed += lines
        if path is not None:
            return path, content, [*passed, f"--resume auto: going on with {run}"]
    done = newest_run(config)
    if done is not None and read_json(done / "status.json").get("state") == "done":
        found = f"{done} asked for the same and is done"
    else:
        found = f"no run below {RUNS}/ that is not done, asked for the same and has a whole checkpoint"
    return None, None, [*passed, f"--resume auto: {found}; starting from scratch"]


def _find_to_evaluate(config: TrainConfig) -> Found:
    run = newest_run(config)
    path, content, lines = newest_whole(run / "checkpoints") if run is not None else (None, None, [])
    if path is None:
        raise UserError(
            f"-e --resume auto: no run below {RUNS}/ has a whole checkpoint and asked for the same; give --resume a path"
        )
    return path, content, [*lines, f"--resume auto: validating {run}"]


def _end_a_pointless_restart(config: TrainConfig) -> None:
    """torchrun restarts a job of which a worker failed. One that was done by then, or that failed for a reason that
    stays, ends at once with the code it had."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0:
        return
    run = Path(config.output_dir) if config.output_dir else run_of_this_launcher()
    status = read_json(run / "status.json") if run else {}
    if status.get("launcher") != launcher_name():
        return
    if status.get("state") == "done":
        raise AlreadyDone(f"not restarted, since {run} is done")
    if status.get("state") == "failed" and status.get("exit_code") in LASTING:
        raise LastingError(
            f"not restarted, since {run} failed for a reason that stays: {status.get('why')}", status["exit_code"]
        )


def _folder_to_begin_in(config: TrainConfig) -> Path | None:
    """An existing run without a checkpoint is begun anew, if it is the same run; None for a folder that is none yet."""
    path = Path(config.output_dir) if config.output_dir else None
    if path is None or not (path / "config.yaml").exists():
        return None
    if not asks_the_same(path, config):
        raise UserError(
            f"{path} holds another run (see its config.yaml), without a checkpoint: give another --output-dir"
        )
    return path


def _folder_to_go_on_in(config: TrainConfig, checkpoint: Path) -> Path | None:
    own = run_of_checkpoint(checkpoint)
    if own is None or (config.output_dir and Path(config.output_dir).resolve() != own.resolve()):
        return None
    return own


def _refuse_another_model(merged: TrainConfig, content: dict[str, Any]) -> None:
    saved = content["config"].get("arch")
    if saved is not None and merged.arch != saved:
        raise UserError(
            f"--arch {merged.arch}, but the checkpoint holds a {saved}: resume with its own, or start from --weights",
            True,
        )


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

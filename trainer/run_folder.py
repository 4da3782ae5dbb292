"""The folder of a run: its name, its lock, its settings and status; and finding one to go on with."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.config import DEFAULTS, KEYS, MATCH_IGNORES, NOT_IN_FILE, TrainConfig
from trainer.config_file import read_config_file
from trainer.errors import UserError

RUNS = "runs"
LAST = "last.pt"
BEST = "best.pt"


class RunFolder:
    """A locked run folder. Rank 0 makes it; other ranks know its path alone."""

    def __init__(self, path: Path, lock: int | None) -> None:
        self.path = path
        self._lock = lock

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def write_config(self, asked: TrainConfig, resolved: TrainConfig) -> None:
        write_atomically(self.path / "config.yaml", to_yaml(asked))
        write_atomically(self.path / "resolved.yaml", to_yaml(resolved))

    def write_environment(self, facts: dict[str, Any]) -> None:
        """Facts of this start; command and time of earlier ones stay below ``earlier_starts``."""
        target = self.path / "environment.json"
        earlier = read_json(target)
        starts = earlier.get("earlier_starts")
        starts = starts if isinstance(starts, list) else []
        if earlier:
            starts.append({key: earlier.get(key) for key in ("time", "command")})
        write_atomically(target, json.dumps({**facts, "earlier_starts": starts}, indent=2) + "\n")

    def write_status(self, state: str, why: str | None = None, exit_code: int | None = None) -> None:
        """``state``: running, done, preempted or failed."""
        content = {
            "state": state,
            "why": why,
            "exit_code": exit_code,
            "launcher": launcher_name(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }
        target, text = self.path / "status.json", json.dumps(content, indent=2) + "\n"
        try:
            write_atomically(target, text)
        except OSError:  # a full disk still takes a few bytes where as many were before
            with open(target, "r+", encoding="utf-8") as stream:
                stream.write(text)
                stream.truncate()

    def has_failed(self) -> bool:
        """Whether a rank of this start has written so."""
        return read_json(self.path / "status.json").get("state") == "failed"

    def release(self) -> None:
        if self._lock is not None:
            _unlock(self._lock)
            self._lock = None


def launcher_name() -> str:
    """The process that started this one: torchrun's agent, which stays the same over its restarts. By number and, where
    the system tells it, start in clock ticks: in containers every agent is process 1, and ``runs/`` outlives them."""
    parent = os.getppid()
    try:
        fields = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return str(parent)
    return f"{parent}.{fields[19]}"  # proc(5): starttime, the 22nd field


def open_run_folder(path: Path, resuming: bool) -> RunFolder:
    """Make and lock a run folder, or lock an existing one that is resumed. Raises UserError."""
    try:
        taken = not resuming and ((path / "config.yaml").exists() or any(path.glob("checkpoints/*")))
        if not taken:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        lock = _try_lock(path)
    except OSError as error:
        raise UserError(f"cannot make the run folder {path}: {error.strerror or error}") from error
    if lock is None:
        raise UserError(f"{path} is in use by a running process: wait for it, or give another --output-dir")
    if taken:
        _unlock(lock)
        raise UserError(f"{path} holds a run already: give another --output-dir, or go on with it by --resume {path}")
    return RunFolder(path, lock)


def new_run_path(arch: str, opt_level: str, memory_format: str) -> Path:
    """Make ``runs/<date-time>-<arch>-<opt level>-<memory format>``, with a counter where that is taken."""
    name = "".join(letter if letter.isalnum() or letter in "._" else "_" for letter in arch)
    path = Path(RUNS) / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{opt_level}-{memory_format}"
    counter, free = 2, path
    while True:
        try:
            free.mkdir(parents=True)
            return free
        except FileExistsError:
            free = path.with_name(f"{path.name}-{counter}")
            counter += 1
        except OSError as error:
            raise UserError(f"cannot make the run folder {free}: {error.strerror or error}") from error


def find_resumable(config: TrainConfig, runs: Path | None = None) -> Iterator[Path]:
    """The runs below ``runs`` that are not done, not locked, have a checkpoint and asked for the same, newest first."""
    for path in _matching_runs(config, runs, done_too=False):
        lock = _try_lock(path) if has_checkpoint(path) else None
        if lock is not None:
            _unlock(lock)
            yield path


def has_checkpoint(path: Path) -> bool:
    """Whether a run folder holds a checkpoint, whole or not."""
    return any((path / "checkpoints").glob("*.pt"))


def newest_run(config: TrainConfig) -> Path | None:
    """The newest run that asked for the same and has a checkpoint, done or not."""
    return next((run for run in _matching_runs(config, None, done_too=True) if has_checkpoint(run)), None)


def run_of_this_launcher() -> Path | None:
    """The newest run below ``runs/`` that the launcher of this process started before."""
    ours = (
        run for run in _newest_first(Path(RUNS)) if read_json(run / "status.json").get("launcher") == launcher_name()
    )
    return next(ours, None)


def _newest_first(runs: Path) -> list[Path]:
    found = [path.parent for path in runs.glob("*/status.json")] if runs.is_dir() else []
    return sorted(found, key=lambda path: (path / "status.json").stat().st_mtime, reverse=True)


def _matching_runs(config: TrainConfig, runs: Path | None, done_too: bool) -> Iterator[Path]:
    for path in _newest_first(Path(RUNS) if runs is None else runs):
        done = read_json(path / "status.json").get("state") == "done"
        if (done_too or not done) and asks_the_same(path, config):
            yield path


def run_of_checkpoint(checkpoint: Path) -> Path | None:
    """The run folder a checkpoint lies in, None for a file from elsewhere."""
    folder = checkpoint if checkpoint.parent.name == "checkpoints" else checkpoint.resolve()
    run = folder.parent.parent
    known = any((run / name).exists() for name in ("config.yaml", "status.json"))  # one of them may be lost
    return run if folder.parent.name == "checkpoints" and known else None


def to_yaml(config: TrainConfig) -> str:
    """Every key but where it was written; tuples as lists."""
    import yaml

    values = {key: getattr(config, key) for key in KEYS if key not in NOT_IN_FILE}
    return yaml.safe_dump(
        {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}, sort_keys=False
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, empty where the file is missing or damaged."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def asks_the_same(path: Path, config: TrainConfig) -> bool:
    try:
        saved = read_config_file(str(path / "config.yaml"))
    except UserError:
        return False
    return all(saved.get(key, DEFAULTS[key]) == getattr(config, key) for key in KEYS if key not in MATCH_IGNORES)


# A lock belongs to the open file, which a forked loader worker shares: one that outlives its killed
# parent by some seconds would keep the run locked. Children close their copies.
_held: set[int] = set()


def _try_lock(path: Path) -> int | None:
    handle = os.open(path / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    _held.add(handle)
    return handle


def _unlock(handle: int) -> None:
    _held.discard(handle)
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _close_inherited_locks() -> None:
    for handle in _held:
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited_locks)


def write_atomically(target: Path, text: str) -> None:
    """Text under a name that never holds half of it; line ends stay as they are."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")  # ranks may write at once
    try:
        with open(temporary, "w", newline="", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise

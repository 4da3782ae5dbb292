"""What goes into a checkpoint, and how a run goes on from one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.cadence import Cadence
from trainer.checkpoint import (
    FORMAT,
    load_optimizer_state,
    load_rng_state,
    optimizer_state,
    rng_state,
    write_checkpoint,
)
from trainer.distributed import Group
from trainer.errors import UserError
from trainer.memory_format import check_stride_orders
from trainer.run_folder import BEST, LAST
from trainer.run_state import Progress
from trainer.step import Stepper
from trainer.weights import COUNTER


@dataclass(frozen=True)
class SaveOptions:
    save_every_steps: int | None = None
    save_every_minutes: float = 15.0


class CheckpointSaver:
    """Saves ``last.pt`` and ``best.pt`` from rank 0; every rank calls ``save``, since each has a generator to store.

    ``facts``: what does not change during the run (arch, settings, classes), as plain types.
    """

    def __init__(
        self,
        folder: Path | None,
        group: Group,
        stepper: Stepper,
        facts: dict[str, Any],
        options: SaveOptions | None = None,
    ) -> None:
        options = options or SaveOptions()
        self._folder = folder
        self._group = group
        self._stepper = stepper
        self._facts = facts
        self._cadence = Cadence(options.save_every_steps, options.save_every_minutes)

    def due_by_step(self, step: int) -> bool:
        """The same on every rank."""
        return self._cadence.due_by_step(step)

    def due_by_clock(self) -> bool:
        """By this rank's clock: ranks must agree on the answer of rank 0."""
        return self._cadence.due_by_clock()

    def close(self) -> None:
        """Every save is on disk, or an error raised."""

    def save(self, progress: Progress, is_best: bool) -> None:
        self._cadence.saved()
        generators, windows = zip(
            *self._group.gather((rng_state(self._group.device), progress.window_sums)), strict=True
        )
        if self._folder is None:
            return
        stepper = self._stepper
        content = {
            "format": FORMAT,
            **self._facts,
            "state_dict": stepper.precision.model_state(stepper.model),
            "optimizer": optimizer_state(stepper.optimizer),
            "precision": stepper.precision.state_dict(),
            "ema": None,
            **vars(progress),
            "window_sums": list(windows),
            "rng": list(generators),
            "world_size": self._group.world_size,
        }
        folder = self._folder / "checkpoints"
        write_checkpoint(folder / LAST, content, also=folder / BEST if is_best else None)


def restore(content: dict[str, Any], stepper: Stepper, group: Group) -> tuple[Progress, list[str]]:
    """Bring model, optimizer, scaler and generators to a checkpoint's state; returns the progress and notices."""
    notices = []
    load_model(content, stepper)
    check_stride_orders(stepper.optimizer, stepper.precision.masters)
    if not load_optimizer_state(stepper.optimizer, content.get("optimizer", {})):
        notices.append(
            "note: the file's optimizer state does not fit this model's parameters: momentum starts from zero"
        )
    stepper.precision.load_state_dict(content.get("precision", {}))
    known = {key: content[key] for key in vars(Progress()) if key in content}
    progress = Progress(**known)
    progress.epoch_sums = list(progress.epoch_sums)
    progress.window_sums = _own_window(content.get("window_sums", []), group)
    if content.get("foreign"):
        progress.best_epoch = progress.epoch - 1 if progress.best_acc1 else -1
        notices.append(
            "note: a checkpoint of another script: it holds weights, epoch, best accuracy and optimizer, no loss scale and no random state"
        )
    elif not load_rng_state(content["rng"], group.ranks.rank, group.world_size, group.device):
        notices.append(
            f"note: saved on {content['world_size']} ranks, going on with {group.world_size}: the random state of dropout starts anew"
        )
    return progress, notices


def _own_window(windows: list[list[float]], group: Group) -> list[float]:
    """This rank's part of the sums since the last logged step; in another world rank 0 takes them all."""
    if len(windows) == group.world_size:
        return list(windows[group.ranks.rank])
    whole = [sum(column) for column in zip(*windows, strict=True)] if windows and group.is_main else []
    return whole or [0.0] * 4


def load_model(content: dict[str, Any], stepper: Stepper) -> None:
    """Weights alone; a file of another script may lack batch norm's count of batches, which nothing here reads."""
    own = stepper.model.state_dict()
    counts = {name: value for name, value in own.items() if name.endswith(COUNTER)}
    state = {**counts, **content["state_dict"]}
    other = [name for name in own if name not in state or _shape(own[name]) != _shape(state[name])]
    if other or len(state) != len(own):
        name = other[0] if other else next(name for name in state if name not in own)
        raise UserError(
            f"the checkpoint's weights do not fit this model ({name}): give its own --arch and --num-classes", True
        )
    stepper.precision.load_model_state(stepper.model, state)


def _shape(value: Any) -> Any:
    return getattr(value, "shape", None)  # a module's extra state has none

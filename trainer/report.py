"""Turns what the loop measured into records and lines, and hands them to console and files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainer.distributed import Group
from trainer.hardware import peak_memory_gib, usable_cores
from trainer.metrics import Means
from trainer.progress import epoch_line, input_bound, train_line, val_explosion, val_line
from trainer.run_log import Console, RunFiles
from trainer.step import Health
from trainer.timing import StepTimer

if TYPE_CHECKING:
    from trainer.checkpoint_writer import Written
    from trainer.run_state import Progress


class Reporter:
    """``files`` is None on every rank but the first, and ``console`` silent there. ``workers``: loader processes
    of a rank, None where images are not loaded."""

    def __init__(self, console: Console, files: RunFiles | None, group: Group, workers: int | None = None) -> None:
        self.console = console
        self.files = files
        self._group = group
        self._workers = workers
        self.mean_images_per_sec: float | None = None  # of the epoch's steps so far, over all ranks
        self._seen: dict[str, list[float]] = {"train/grad_norm": [], "train/loss_scale": []}  # of its logged steps

    def step(
        self,
        progress: Progress,
        place: tuple[int, int],
        lr: float,
        means: tuple[Means, Means],
        health: Health,
        timer: StepTimer,
    ) -> None:
        """A logged step. ``place``: (step in the epoch, steps in it); ``means``: since the last line, and of the epoch."""
        speed = timer.line()
        window, running = means
        self.mean_images_per_sec = speed["mean_images_per_sec"]
        self._seen["train/grad_norm"].append(health.grad_norm)
        self._seen["train/loss_scale"].append(health.loss_scale)
        self.console.say(train_line(progress.epoch, *place, speed, window, running))
        if self.files is None:
            return
        self.files.add_step(
            {
                **_place(progress),
                "loss": window.loss,
                "acc1": window.acc1,
                "acc5": window.acc5,
                "lr": lr,
                "loss_scale": health.loss_scale,
                "grad_norm": health.grad_norm,
                "skipped_steps": health.skipped_steps,
                **self._speed(speed["images_per_sec"]),
                "step_time_ms": 1000 * speed["step_s"],
                "data_wait_share": speed["data_wait_share"],
                "peak_memory_gib": peak_memory_gib(self._group.device),
            }
        )

    def val_step(self, place: tuple[int, int], means: tuple[Means, Means], timer: StepTimer) -> None:
        self.console.say(val_line(*place, timer.line(), *means))

    def epoch(
        self, progress: Progress, lr: float, train: Means, val: dict[str, Any], timer: StepTimer, dropped: int
    ) -> None:
        """The end of an epoch; ``val``: the record of its validation; ``dropped``: its images that no step took."""
        speed = timer.epoch()
        record: dict[str, Any] = {
            **_place(progress),
            "lr": lr,
            "train_loss": train.loss,
            "train_acc1": train.acc1,
            "train_acc5": train.acc5,
            **val,
            **self._speed(speed["images_per_sec"]),
            "wall_images_per_sec": speed["wall_images_per_sec"],
            "data_wait_share": speed["data_wait_share"],
            "data_wait_share_by_rank": self._group.gather(speed["data_wait_share"]),
            "peak_memory_gib": peak_memory_gib(self._group.device),
            "steady_steps": speed["steady_steps"],
            "timing_warmup_steps": timer.warmup_steps,
            "skipped_steps": progress.skipped_steps,
            "dropped_images": dropped,
        }
        self.console.say(epoch_line(record))
        for line in (val_explosion(record), self._input_bound(record)):
            if line:
                self.console.notice(line)
        if self.files is not None:
            self.files.add_epoch(record)
            for tag, values in self._seen.items():
                self.files.add_histogram(f"{tag}_of_epoch", values, progress.step)
            self.files.flush()
        for values in self._seen.values():
            values.clear()

    def saved(self, written: Written, background: bool) -> None:
        """A checkpoint is on disk."""
        assert written.path is not None
        size = written.path.stat().st_size / 2**20 if written.path.exists() else 0.0
        pause = written.paused + (0.0 if background else written.seconds)
        self.console.say(
            f"saved {written.path.name} ({size:.1f} MiB): training paused {1000 * pause:.1f} ms, written "
            f"{'in the background ' if background else ''}in {1000 * written.seconds:.0f} ms"
        )
        if self.files is not None:
            self.files.add_save(
                {"epoch": written.epoch, "step": written.step, "save_pause_ms": 1000 * pause,
                 "save_write_ms": 1000 * written.seconds, "checkpoint_mib": size}
            )  # fmt: skip

    def _input_bound(self, record: dict[str, Any]) -> str | None:
        if self._workers is None:
            return None
        return input_bound(record, self._workers, max(1, usable_cores() // self._group.ranks.local_world_size))

    def _speed(self, images_per_sec: float) -> dict[str, float]:
        return {
            "images_per_sec_total": images_per_sec,
            "images_per_sec_per_device": images_per_sec / self._group.world_size,
        }


def _place(progress: Progress) -> dict[str, int]:
    return {"epoch": progress.epoch, "step": progress.step, "images_seen": progress.images_seen}

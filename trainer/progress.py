"""The lines of a run, in the form that apex's main_amp.py printed and people's tools read."""

from __future__ import annotations

import math
from typing import Any

from trainer.metrics import Means

WAIT_SHARE_TOLD = 0.3
LEAST_STEPS_TOLD = 5


def meter(name: str, value: float, mean: float, digits: int = 3, mean_digits: int | None = None) -> str:
    """``name value (mean)``: the value since the last line and the running mean."""
    return f"{name} {value:.{digits}f} ({mean:.{digits if mean_digits is None else mean_digits}f})"


def train_line(epoch: int, step: int, steps: int, speed: dict[str, float], window: Means, running: Means) -> str:
    return "\t".join(
        [
            f"Epoch: [{epoch}][{step}/{steps}]",
            meter("Time", speed["step_s"], speed["mean_step_s"]),
            meter("Speed", speed["images_per_sec"], speed["mean_images_per_sec"]),
            *_quality(window, running),
            f"Data wait {100 * speed['data_wait_share']:.1f} %",
        ]
    )


def val_line(step: int, steps: int, speed: dict[str, float], window: Means, running: Means) -> str:
    return "\t".join(
        [
            f"Test: [{step}/{steps}]",
            meter("Time", speed["step_s"], speed["mean_step_s"]),
            meter("Speed", speed["images_per_sec"], speed["mean_images_per_sec"]),
            *_quality(window, running),
        ]
    )


def _quality(window: Means, running: Means) -> list[str]:
    return [
        meter("Loss", window.loss, running.loss, 10, 4),
        meter("Prec@1", window.acc1, running.acc1),
        meter("Prec@5", window.acc5, running.acc5),
    ]


def epoch_line(record: dict[str, Any]) -> str:
    """One summary line an epoch."""
    timed = f"{record['steady_steps']} steps timed, the first {record['timing_warmup_steps']} left out"
    parts = [
        f"{record['images_per_sec_total']:.1f} img/s total, {record['images_per_sec_per_device']:.1f} per device ({timed})",
        f"whole epoch {record['wall_images_per_sec']:.1f} img/s",
        f"data wait {_wait(record['data_wait_share_by_rank'])} %",
        f"peak memory {record['peak_memory_gib']:.2f} GiB",
        f"train loss {record['train_loss']:.4f}",
    ]
    if "val_loss" in record:
        parts.append(
            f"val loss {record['val_loss']:.4f} Prec@1 {record['val_acc1']:.3f} Prec@5 {record['val_acc5']:.3f}"
        )
    if record["skipped_steps"]:
        parts.append(f"{record['skipped_steps']} steps skipped for non-finite gradients so far")
    if record["dropped_images"]:
        parts.append(f"{record['dropped_images']} images left over (fewer than two a rank)")
    return f"Epoch {record['epoch']}: " + "; ".join(parts)


def _wait(shares: list[float]) -> str:
    low, high = 100 * min(shares), 100 * max(shares)
    return f"{low:.1f}" if len(shares) == 1 else f"{low:.1f} to {high:.1f} over {len(shares)} ranks"


def val_explosion(record: dict[str, Any]) -> str | None:
    """A line where validation has come apart while training looks well."""
    if "val_loss" not in record:  # --val-every
        return None
    train, val = record["train_loss"], record["val_loss"]
    if math.isfinite(train) and not (math.isfinite(val) and val < 10 * max(train, 1.0)):
        return (
            f"validation loss {val:.4g} against a training loss of {train:.4g}: batch norm's running statistics no longer "
            "describe the data (half precision or a learning rate that is too high); --opt-level O2 keeps batch norm in float32"
        )
    return None


def input_bound(record: dict[str, Any], workers: int, cores: int) -> str | None:
    """A line where an epoch waited for images too long; ``workers`` and ``cores`` of this rank. Five steps at the
    least: one slow start says nothing."""
    # One rank that waits holds up all the others, which count that as computing.
    share = max(record["data_wait_share_by_rank"])
    if record["steady_steps"] < LEAST_STEPS_TOLD or not share > WAIT_SHARE_TOLD:
        return None
    more = [f"more workers (-j is {workers}, this process has {cores} cores)"] if workers < cores else []
    tries = [*more, "larger batches (-b)", "smaller files (scripts/prepare_folder.py resizes once)"]
    return (
        f"input-bound: {100 * share:.1f} % of epoch {record['epoch']} went by waiting for images; try "
        f"{', '.join(tries[:-1])} or {tries[-1]}"
    )


def duration(seconds: float) -> str:
    """``1h02m03s``, ``2m03s`` or ``3.4s``."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m{rest:02d}s" if hours else f"{minutes}m{rest:02d}s"

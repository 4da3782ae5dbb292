"""The last act of a run: fit or evaluate, then the closing lines and records."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from trainer.config import KEYS, MATCH_IGNORES, NOT_IN_FILE, TrainConfig
from trainer.engine import Engine, TrainBatches, ValBatches
from trainer.errors import OutOfMemory, Preempted, UserError
from trainer.exits import Session
from trainer.hardware import peak_memory_gib
from trainer.models import build_model
from trainer.progress import duration

# Settings that runs are not sorted by in TensorBoard's hparams tab, which ticks the first five by name.
NOT_SORTED_BY = (
    *NOT_IN_FILE, *MATCH_IGNORES, "data_dir", "train_shards", "val_shards", "val_labels", "class_map", "bad_images",
)  # fmt: skip


def fit(
    engine: Engine, train: TrainBatches, val: ValBatches, config: TrainConfig, session: Session
) -> tuple[str, str | None]:
    """Train to the end or to where the run was asked to stop; returns state and reason. Raises Preempted where it
    was asked by a signal."""
    started, progress = time.perf_counter(), engine.progress
    if engine.is_over():
        engine.report.console.say(
            f"nothing left to do: {progress.epoch} of {engine.options.epochs} epochs are done{_early(engine)}; {'a larger --early-stop' if _early(engine) else '--epochs N'} goes on"
        )
    with model_errors_named(config, engine.group.device):
        done = engine.fit(train, val)
    progress = engine.progress  # another one after a rewind
    if done and _early(engine):
        engine.report.console.say(f"stopped after epoch {progress.epoch - 1}{_early(engine)}")
    if session.files is not None and (done or progress.best_epoch < 0):
        settings = {key: getattr(config, key) for key in KEYS if key not in NOT_SORTED_BY}
        session.files.add_hparams(settings, _sorted_by(engine), progress.step)
    best = (
        f"best Prec@1 {progress.best_acc1:.3f} at epoch {progress.best_epoch}"
        if progress.best_epoch >= 0
        else "no epoch validated yet"
    )
    where = f"; run folder {session.folder.path}" if session.folder is not None else ""
    engine.report.console.say(
        f"{'Done' if done else 'Stopped'}: {best}; {duration(time.perf_counter() - started)}{where}"
    )
    if engine.boundary.reason is not None and not done:
        raise Preempted(
            f"{engine.boundary.reason.name}: saved after step {progress.step} (epoch {progress.epoch}); --resume goes on from there",
            engine.boundary.reason.exit_code,
        )
    return ("done", None) if done else ("preempted", "stopped as asked, before the last epoch")


def _sorted_by(engine: Engine) -> dict[str, float]:
    """What runs are sorted by in TensorBoard's hparams tab; a run of an A/B stops before its first validation."""
    found, speed = {}, engine.report.mean_images_per_sec
    if engine.progress.best_epoch >= 0:
        found["hparam/best_val_acc1"] = engine.progress.best_acc1
    if speed is not None:
        found["hparam/images_per_sec"] = speed
    return found


def _early(engine: Engine) -> str:
    """Why a run is over before its last epoch; empty where it is not."""
    progress = engine.progress
    if progress.epoch >= engine.options.epochs:
        return ""
    return f", Prec@1 has not risen for {progress.epochs_without_better()} (--early-stop {engine.options.early_stop})"


@contextlib.contextmanager
def model_errors_named(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """As one sentence: an out-of-memory error of torch (batch size, peak, what to try), and images of a size that a
    model of torchvision does not take. Errors in the user's own model keep their traceback."""
    try:
        yield
    except (AssertionError, RuntimeError, ValueError) as error:
        # CUDA has a type of its own; the CPU's allocator says it in words.
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            refusal = None if isinstance(error, UserError) or ":" in config.arch else refused_size(config, str(error))
            if refusal is None:
                raise
            raise UserError(f"-a {config.arch} does not take {refusal}", True) from error
        pieces = f", --micro-batch {config.micro_batch}" if config.micro_batch else ""
        raise OutOfMemory(
            f"out of memory on {device.type} with --batch-size {config.batch_size}{pieces} at {config.image_size} pixels "
            f"(peak {peak_memory_gib(device):.1f} GiB): lower --batch-size, or keep it and split it with --micro-batch "
            f"{max(1, (config.micro_batch or config.batch_size) // 2)}"
        ) from error


def refused_size(config: TrainConfig, words: str) -> str | None:
    """Which of the run's images torchvision's own model refuses with the same ``words``; None where it does not.

    A new one on the meta device: what the run has made of its model (SyncBN, half precision) fails there for other reasons.
    """
    batch = min(config.batch_size, config.micro_batch or config.batch_size)
    assert config.num_classes is not None
    assert config.image_size is not None
    assert config.val_image_size is not None
    sizes = sorted({config.image_size, *map(int, config.progressive[::2] if config.progressive else ())})
    with torch.device("meta"):
        twin = build_model(config.arch, config.num_classes)
    for train, count, size in [*((True, batch, size) for size in sizes), (False, 1, config.val_image_size)]:
        try:
            with torch.no_grad():
                twin.train(train)(torch.empty(count, 3, size, size, device="meta"))
        except (AssertionError, RuntimeError, ValueError) as error:
            if str(error) == words:
                what = f"a {'training' if train else 'validation'} batch of {count}, at {size} pixels"
                return f"{what}: {' '.join(words.split())}"
    return None


def evaluate(engine: Engine, val: ValBatches, config: TrainConfig, session: Session) -> tuple[str, str | None]:
    """Validate once and record the result in the run's own folder. Raises Preempted where a signal stops it."""
    with model_errors_named(config, engine.group.device):
        scores, progress = engine.validate(val), engine.progress
    if scores is None:
        assert engine.boundary.reason is not None
        raise Preempted(
            f"{engine.boundary.reason.name}: stopped inside the validation", engine.boundary.reason.exit_code
        )
    means = scores.main
    record: dict[str, Any] = {
        "epoch": progress.epoch, "step": progress.step, "images_seen": progress.images_seen,
        **scores.record(),
    }  # fmt: skip
    console, files = engine.report.console, engine.report.files
    console.say(
        f"Evaluated {means.images} images: loss {means.loss:.4f} Prec@1 {means.acc1:.3f} Prec@5 {means.acc5:.3f}"
    )
    if files is not None:
        files.add_epoch(record)
    return "done", None

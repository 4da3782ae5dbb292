"""What a run tells: console, metrics.jsonl, summary.csv, TensorBoard. Only rank 0 writes.

``step`` counts attempted optimizer updates, skipped ones included; it is the x of every curve.
"""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

from trainer.append_file import AppendFile, tell_failed_write
from trainer.event_files import EventFiles
from trainer.run_folder import write_atomically

SUMMARY_COLUMNS = (
    "epoch", "step", "images_seen", "lr", "train_loss", "train_acc1", "train_acc5", "val_loss", "val_acc1", "val_acc5",
    "images_per_sec_total", "images_per_sec_per_device", "wall_images_per_sec", "data_wait_share", "peak_memory_gib",
)  # fmt: skip
# TensorBoard tag -> key of a step record; each is a point a logged step.
STEP_TAGS = {
    "train/loss": "loss",
    "train/acc1": "acc1",
    "train/acc5": "acc5",
    "train/lr": "lr",
    "train/loss_scale": "loss_scale",
    "train/grad_norm": "grad_norm",
    "train/skipped_steps": "skipped_steps",
    "perf/images_per_sec_total": "images_per_sec_total",
    "perf/images_per_sec_per_device": "images_per_sec_per_device",
    "perf/step_time_ms": "step_time_ms",
    "perf/data_wait_share": "data_wait_share",
    "perf/peak_memory_gib": "peak_memory_gib",
}
EPOCH_TAGS = {
    "epoch/loss": "train_loss",
    "epoch/images_per_sec": "images_per_sec_total",
    **{f"{kind}/{key}": f"{kind}_{key}" for kind in ("val", "val_ema", "val_raw") for key in ("loss", "acc1", "acc5")},
}

SAVE_TAGS = {"save/pause_ms": "save_pause_ms", "save/write_ms": "save_write_ms"}


class Console:
    """Lines on stdout, with a progress bar between them where stderr is a terminal."""

    def __init__(self, is_main: bool) -> None:
        self.is_main = is_main
        self._bar: Any = None

    def say(self, line: str = "") -> None:
        if not self.is_main:
            return
        if self._bar is not None and not self._bar.disable:
            self._bar.write(line)
        else:
            print(line, flush=True)

    def notice(self, line: str) -> None:
        self.say(f"note: {line}")

    def start_bar(self, title: str, total: int, done: int = 0, unit: str = "step") -> None:
        if not self.is_main:
            return
        try:
            from tqdm import tqdm
        except ModuleNotFoundError:
            return
        self._bar = tqdm(total=total, initial=done, desc=title, unit=unit, leave=False, disable=None)

    def advance(self, count: int = 1) -> None:
        if self._bar is not None:
            self._bar.update(count)

    def end_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class RunFiles:
    """metrics.jsonl, summary.csv and the event file of a run folder; a full disk does not end the training.

    On a resume, what was written after step ``resumed_step`` is taken out, so that no step stands twice.
    """

    def __init__(self, folder: Path, tensorboard: bool, resumed_step: int | None = None) -> None:
        self._folder = folder
        self._events = EventFiles(folder, tensorboard, None if resumed_step is None else resumed_step + 1)
        if resumed_step is not None:
            _keep_until(folder, resumed_step)
        self._jsonl = AppendFile(folder / "metrics.jsonl")
        self._summary = AppendFile(folder / "summary.csv")
        if not (folder / "summary.csv").exists():
            self._summary.append(",".join(SUMMARY_COLUMNS) + "\r\n")

    def add_step(self, record: dict[str, Any]) -> None:
        self._write_json({"kind": "step", **record})
        self._events.add_points(STEP_TAGS, record)

    def add_epoch(self, record: dict[str, Any]) -> None:
        self._write_json({"kind": "epoch", **record})
        row = io.StringIO()
        csv.writer(row).writerow(_csv_value(record.get(key)) for key in SUMMARY_COLUMNS)
        self._summary.append(row.getvalue())
        self._events.add_points(EPOCH_TAGS, record)

    def add_save(self, record: dict[str, Any]) -> None:
        """A checkpoint and what it cost the training."""
        self._write_json({"kind": "save", **record})
        self._events.add_points(SAVE_TAGS, record)

    def rewind(self, step: int, record: dict[str, Any]) -> None:
        """Take out what was written after ``step``, to which the run goes back; ``record`` says why."""
        for file in (self._jsonl, self._summary):
            file.forget()
        try:
            _keep_until(self._folder, step)
        except OSError as error:
            tell_failed_write(self._folder / "metrics.jsonl", error)
        self._events.purge(step + 1)
        self._write_json({"kind": "rewind", **record})

    def add_image(self, tag: str, picture: Any, step: int) -> None:
        """``picture``: uint8 array (H, W, 3)."""
        self._events.add_image(tag, picture, step)

    def add_scalars(self, values: dict[str, float], step: int) -> None:
        """For TensorBoard alone; ``values`` by tag."""
        self._events.add_points({tag: tag for tag in values}, {**values, "step": step})

    def add_histogram(self, tag: str, values: list[float], step: int) -> None:
        self._events.add_histogram(tag, values, step)

    def add_later(self, tag: str, text: str) -> None:
        self._events.add_later(tag, text)

    def add_text(self, tag: str, text: str) -> None:
        self._events.add_text(tag, text)

    def add_hparams(self, settings: dict[str, Any], metrics: dict[str, float], step: int) -> None:
        self._events.add_hparams(settings, metrics, step)

    def flush(self) -> None:
        self._events.flush()

    def close(self) -> None:
        for file in (self._jsonl, self._summary):
            file.append("")  # what is still to be written
        self._events.close()

    def _write_json(self, record: dict[str, Any]) -> None:
        self._jsonl.append(json.dumps({key: _json_value(value) for key, value in record.items()}) + "\n")


def _keep_until(folder: Path, step: int) -> None:
    """Drop the lines of steps after ``step``, and what a killed process or a lost machine left: half a line, or zeros."""
    jsonl = folder / "metrics.jsonl"
    if jsonl.exists():
        kept = [line for line in _lines(jsonl) if _step_of(line, step) <= step]
        write_atomically(jsonl, "".join(line + "\n" for line in kept))
    summary = folder / "summary.csv"
    if summary.exists():
        rows = [row for row in csv.DictReader(_lines(summary)) if _is_until(row.get("step"), step)]
        lines = [",".join(SUMMARY_COLUMNS)] + [",".join(row.get(key) or "" for key in SUMMARY_COLUMNS) for row in rows]
        write_atomically(summary, "".join(line + "\r\n" for line in lines))


def _lines(path: Path) -> list[str]:
    """Of a file that may hold bytes which are no text."""
    return path.read_bytes().decode("utf-8", errors="replace").replace("\0", "").splitlines()


def _is_until(cell: str | None, step: int) -> bool:
    return cell is not None and cell.isdecimal() and int(cell) <= step


def _step_of(line: str, step: int) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return step + 1


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv_value(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value

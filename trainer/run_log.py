"""What a run tells: console, metrics.jsonl, summary.csv, TensorBoard. Only rank 0 writes.

``step`` counts attempted optimizer updates, skipped ones included; it is the x of every curve.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

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
    "val/loss": "val_loss",
    "val/acc1": "val_acc1",
    "val/acc5": "val_acc5",
}

SAVE_TAGS = {"perf/save_pause_ms": "save_pause_ms", "perf/save_write_ms": "save_write_ms"}


class Console:
    """Lines on stdout, with a progress bar between them where stderr is a terminal."""

    def __init__(self, is_main: bool) -> None:
        self.is_main = is_main
        self._bar: Any = None

    def say(self, line: str = "") -> None:
        if not self.is_main:
            return
        try:
            if self._bar is not None and not self._bar.disable:
                self._bar.write(line)
            else:
                print(line, flush=True)
        except BrokenPipeError:
            # Whoever read the lines has gone (`| head`); the training and its files go on.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

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
    """metrics.jsonl, summary.csv and the event file of a run folder.

    On a resume, what was written after step ``resumed_step`` is taken out, so that no step stands
    twice. TensorBoard is imported at the first point, not before the first step.
    """

    def __init__(self, folder: Path, tensorboard: bool, resumed_step: int | None = None) -> None:
        self._folder = folder
        self._wants_tensorboard = tensorboard
        self._purge_step = None if resumed_step is None else resumed_step + 1
        self._writer: Any = None
        self._texts: dict[str, str] = {}
        if resumed_step is not None:
            _keep_until(folder, resumed_step)
        self._jsonl = open(folder / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115
        new_summary = not (folder / "summary.csv").exists()
        self._summary = open(folder / "summary.csv", "a", newline="", encoding="utf-8")  # noqa: SIM115
        self._rows = csv.DictWriter(self._summary, SUMMARY_COLUMNS, extrasaction="ignore")
        if new_summary:
            self._rows.writeheader()
            self._summary.flush()

    def add_step(self, record: dict[str, Any]) -> None:
        self._write_json({"kind": "step", **record})
        self._write_points(STEP_TAGS, record)

    def add_epoch(self, record: dict[str, Any]) -> None:
        self._write_json({"kind": "epoch", **record})
        self._rows.writerow({key: _csv_value(record.get(key)) for key in SUMMARY_COLUMNS})
        self._summary.flush()
        self._write_points(EPOCH_TAGS, record)

    def add_save(self, record: dict[str, Any]) -> None:
        """A checkpoint and what it cost the training."""
        self._write_json({"kind": "save", **record})
        self._write_points(SAVE_TAGS, record)

    def add_later(self, tag: str, text: str) -> None:
        """Text for TensorBoard, written with the first point: its import must not delay the first step."""
        self._texts[tag] = text

    def add_text(self, tag: str, text: str) -> None:
        """Text for TensorBoard, now or with the first point."""
        if self._writer is None:
            self.add_later(tag, text)
        else:
            self._writer.add_text(tag, _as_code(text), self._purge_step or 0)

    def add_hparams(self, settings: dict[str, Any], metrics: dict[str, float], step: int) -> None:
        """hparams through the run's own writer: ``SummaryWriter.add_hparams`` would start a second event file."""
        writer = self._tensorboard()
        if writer is None:
            return
        from torch.utils.tensorboard.summary import hparams

        plain = {
            key: value if isinstance(value, (bool, int, float, str)) else str(value) for key, value in settings.items()
        }
        for summary in hparams(plain, metrics):
            writer.file_writer.add_summary(summary)
        for tag, value in metrics.items():
            writer.add_scalar(tag, value, step)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        self._jsonl.close()
        self._summary.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write_json(self, record: dict[str, Any]) -> None:
        self._jsonl.write(json.dumps({key: _json_value(value) for key, value in record.items()}) + "\n")
        self._jsonl.flush()

    def _write_points(self, tags: dict[str, str], record: dict[str, Any]) -> None:
        writer = self._tensorboard()
        if writer is None:
            return
        for tag, key in tags.items():
            if record.get(key) is not None:
                writer.add_scalar(tag, record[key], record["step"])

    def _tensorboard(self) -> Any:
        if self._writer is None and self._wants_tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                self._wants_tensorboard = False
                print(
                    "note: tensorboard is not installed, so no event file is written (pip install tensorboard)",
                    flush=True,
                )
                return None
            self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step)
            for tag, text in self._texts.items():
                self._writer.add_text(tag, _as_code(text), (self._purge_step or 1) - 1)
        return self._writer


def _as_code(text: str) -> str:
    return "    " + text.replace("\n", "\n    ")


def _keep_until(folder: Path, step: int) -> None:
    """Drop the lines of steps after ``step``, and a line that a killed process left half written."""
    jsonl = folder / "metrics.jsonl"
    if jsonl.exists():
        kept = [line for line in jsonl.read_text(encoding="utf-8").splitlines() if _step_of(line, step) <= step]
        write_atomically(jsonl, "".join(line + "\n" for line in kept))
    summary = folder / "summary.csv"
    if summary.exists():
        with open(summary, newline="", encoding="utf-8") as stream:
            rows = [row for row in csv.DictReader(stream) if (row["step"] or "").isdigit() and int(row["step"]) <= step]
        lines = [",".join(SUMMARY_COLUMNS)] + [",".join(row[key] or "" for key in SUMMARY_COLUMNS) for row in rows]
        write_atomically(summary, "".join(line + "\r\n" for line in lines))


def _step_of(line: str, step: int) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return step + 1


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv_value(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value

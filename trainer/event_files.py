"""TensorBoard's event files of a run."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.append_file import tell_failed_write

# The custom scalars tab: charts side by side, of the tags that these patterns match.
LAYOUT = {
    "training": {
        "loss": ["Multiline", ["^train/loss$", "^val/loss$"]],
        "speed (images a second)": ["Multiline", ["^perf/images_per_sec_total$"]],
        "data wait (share of the time)": ["Multiline", ["^perf/data_wait_share$"]],
    }
}


class EventFiles:
    """Points and texts for TensorBoard, which is imported with the first point, not before the first step.

    Where writing fails, one line says so, what comes until ``flush`` is dropped, and a new file is begun then:
    ``metrics.jsonl`` holds the same numbers. ``purge_step``: points of an earlier start from this step on are void.
    """

    def __init__(self, folder: Path, wanted: bool, purge_step: int | None) -> None:
        self._folder = folder
        self._wanted = wanted
        self._purge_step = purge_step
        self._writer: Any = None
        self._failed = self._told = False
        self._texts: dict[str, str] = {}

    def add_points(self, tags: dict[str, str], record: dict[str, Any]) -> None:
        """``tags``: tag -> key of ``record``; its ``step`` is the x."""
        points = {tag: record[key] for tag, key in tags.items() if record.get(key) is not None}

        def write(writer: Any) -> None:
            for tag, value in points.items():
                writer.add_scalar(_encodable(tag), value, record["step"])

        self._write(write)

    def add_later(self, tag: str, text: str) -> None:
        """Text written with the first point: TensorBoard's import must not delay the first step."""
        self._texts[tag] = text

    def add_text(self, tag: str, text: str) -> None:
        """Text, now or with the first point."""
        if self._writer is None:
            self.add_later(tag, text)
        else:
            self._write(lambda writer: writer.add_text(tag, _as_code(text), self._purge_step or 0))

    def add_hparams(self, settings: dict[str, Any], metrics: dict[str, float], step: int) -> None:
        """hparams in this very file: ``SummaryWriter.add_hparams`` would start a second one."""
        plain = {
            key: value if isinstance(value, (bool, int, float)) else _encodable(str(value))
            for key, value in settings.items()
            if value is not None  # the text None in a column of numbers would not sort
        }

        def write(writer: Any) -> None:
            from torch.utils.tensorboard.summary import hparams

            for summary in hparams(plain, metrics):
                writer.file_writer.add_summary(summary)
            for tag, value in metrics.items():
                writer.add_scalar(_encodable(tag), value, step)

        self._write(write)

    def add_image(self, tag: str, picture: Any, step: int) -> None:
        """``picture``: uint8 array (H, W, 3)."""
        self._write(lambda writer: writer.add_image(_encodable(tag), picture, step, dataformats="HWC"))

    def add_histogram(self, tag: str, values: list[float], step: int) -> None:
        """Of the finite ones among ``values``; nothing where there are none."""
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            import numpy as np

            self._write(lambda writer: writer.add_histogram(_encodable(tag), np.array(finite), step))

    def purge(self, step: int) -> None:
        """Points from ``step`` on are void: a new file, which says so, follows."""
        self.close()
        self._purge_step = step

    def flush(self) -> None:
        self._failed = False
        if self._writer is not None:
            self._write(lambda writer: writer.flush())

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(OSError):
                writer.close()

    def _write(self, write: Callable[[Any], None]) -> None:
        if not self._wanted or self._failed:
            return
        try:
            if self._writer is None:
                self._open()
            if self._writer is not None:
                write(self._writer)
        except OSError as error:
            self._failed = True
            if not self._told:
                self._told = True
                tell_failed_write(self._folder / "events.*", error)
            self.close()

    def _open(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self._wanted = False
            print(
                "note: tensorboard is not installed, so no event file is written (pip install tensorboard)", flush=True
            )
            return
        if _encodable(str(self._folder)) != str(self._folder):
            self._wanted = False
            print(
                "note: the run folder's name is not UTF-8, as TensorBoard wants it, so no event file is written",
                flush=True,
            )
            return
        _keep_writing_threads_quiet()
        self._writer = SummaryWriter(str(self._folder), purge_step=self._purge_step)
        self._writer.add_custom_scalars(LAYOUT)
        for tag, text in self._texts.items():
            self._writer.add_text(tag, _as_code(text), (self._purge_step or 1) - 1)


def _as_code(text: str) -> str:
    return "    " + _encodable(text).replace("\n", "\n    ")


def _encodable(text: str) -> str:
    """TensorBoard takes UTF-8 alone, which file names need not be."""
    return text.encode("utf-8", "backslashreplace").decode()


def _keep_writing_threads_quiet() -> None:
    """TensorBoard's thread hands its OSError on to the next call, where it becomes our one line: no traceback too."""
    if getattr(threading.excepthook, "leaves_event_files_out", False):
        return
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        ours = type(args.thread).__module__.startswith("tensorboard") and isinstance(args.exc_value, OSError)
        if not ours:
            before(args)

    hook.leaves_event_files_out = True  # type: ignore[attr-defined]
    threading.excepthook = hook

"""Checkpoints: written whole or not at all, read without running code, free of DDP's prefix.

A file holds plain types and contiguous float32 tensors, so that it loads anywhere with
``torch.load(weights_only=True)``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from trainer.checkpoint_parts import wrong_parts
from trainer.errors import UserError
from trainer.tensor_file import TensorFileError, printable, read_tensor_file
from trainer.weights import strip_prefixes

FORMAT = 1


def write_checkpoint(path: Path, content: dict[str, Any], also: Sequence[Path] = ()) -> None:
    """Write to a temporary file beside ``path``, fsync it, verify it, rename it, fsync the folder.

    ``also``: more names for the same bytes, in the same folder; set first, so that ``path`` never tells of a best
    epoch that is not there. Raises OSError; whatever stood under the names then stands there still.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as stream:
            guarded = _Guarded(stream)
            torch.save(content, cast(Any, guarded))
            guarded.raise_error()
            stream.flush()
            os.fsync(stream.fileno())
        damage = damage_of(temporary)
        if damage:
            raise OSError(errno.EIO, f"what was read back is not what was written ({damage})", str(path))
        for name in also:
            _link(temporary, name)
        os.replace(temporary, path)
    except OSError as error:  # of a stream it names no file, else often the temporary one
        raise OSError(error.errno, error.strerror or str(error), error.filename2 or str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


class _Guarded:
    """A stream whose errors wait until torch's writer, which is C++ and takes them badly, is through."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        if self._error is None:
            try:
                return self._stream.write(data)
            except OSError as error:
                self._error = error
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Flushed by whoever opened the stream."""

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error


def damage_of(path: Path) -> str | None:
    """What is wrong with a file of ``torch.save``, by the CRC-32 that its zip holds of each record; None where nothing is."""
    try:
        with zipfile.ZipFile(path) as archive:
            record = archive.testzip()
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        ValueError,
        RuntimeError,
    ) as error:  # a flipped bit says "encrypted"
        return printable(f"{error}") or "no whole zip archive"
    return None if record is None else f"the checksum of {printable(record)} does not match"


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _link(source: Path, target: Path) -> None:
    """The same file under a second name: no second write. All names are only ever replaced, never written into."""
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:  # a file system without hard links
        _copy(source, temporary)
    os.replace(temporary, target)


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
        with open(target, "rb+") as stream:
            os.fsync(stream.fileno())
    except OSError:
        target.unlink(missing_ok=True)
        raise


def read_checkpoint(path: Path, flag: str = "--resume ") -> dict[str, Any]:
    """A checkpoint of ours, of apex's main_amp.py or of pytorch/examples, on the CPU.

    Those of the other two become ours with what they hold: weights, epoch, best accuracy, optimizer.
    ``flag``: what the path was given to, for messages. Raises UserError for a missing or unreadable file.
    """
    if not path.is_file():
        raise UserError(f"{flag}{path}{' is no file' if path.exists() else ': no such file'}{_nearby(path)}")
    # Old files of other scripts are no zip archives and hold no checksums.
    try:
        damage = damage_of(path) if zipfile.is_zipfile(path) else None
        if damage:
            raise UserError(f"{flag}{path} cannot be read: it is damaged ({damage})")
        content = read_tensor_file(path)
    except TensorFileError as error:
        raise UserError(f"{flag}{path} cannot be read: {error}") from error
    except OSError as error:
        raise UserError(f"{flag}{path} cannot be read: {error.strerror or error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise UserError(f"{flag}{path} is no checkpoint: it has no state_dict (for bare weights take --weights)")
    if "format" not in content:
        return _from_elsewhere(content)
    wrong = wrong_parts(content)
    if wrong:
        raise UserError(
            f"{flag}{path} is no whole checkpoint of ours: it lacks {', '.join(wrong)}, or holds something else there"
        )
    if content["format"] > FORMAT:
        raise UserError(f"{flag}{path} was written by a newer version of this script (format {content['format']})")
    return content


def _from_elsewhere(content: dict[str, Any]) -> dict[str, Any]:
    best = content.get("best_prec1", content.get("best_acc1", 0.0))
    arch, optimizer = content.get("arch"), content.get("optimizer")
    return {
        "format": FORMAT,
        "foreign": True,
        "config": {"arch": arch} if isinstance(arch, str) else {},
        "resolved": {},
        "state_dict": strip_prefixes(content["state_dict"]),
        "optimizer": optimizer.get("state", {}) if isinstance(optimizer, dict) else {},
        "epoch": int(content.get("epoch", 0)),
        "best_acc1": float(best),
    }


def _nearby(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f" (and no folder {folder})"
    names = sorted(
        str(found)
        for pattern in ("*.pt", "*.pth*", "*/checkpoints/*.pt", "checkpoints/*.pt")
        for found in folder.glob(pattern)
        if found.is_file()
    )
    return f"; nearby: {', '.join(names[:6])}" if names else f"; {folder} holds no checkpoint"

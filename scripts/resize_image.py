"""One image file -> a JPEG whose shorter side is at most so many pixels, for prepare_folder.py."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, UnidentifiedImageError
from prepared import RECORD, Made, add_to_record, mark_of

from data.decode import FORMATS, open_image, to_rgb

ORIENTATION = 0x0112  # the EXIF tag
_GAP = 2  # the JPEG decoder may shrink to this many times the asked size; what is left is for LANCZOS
_PROFILES = {"RGB": b"RGB ", "L": b"GRAY"}


@dataclass(frozen=True)
class Work:
    """What all files of one run share: SRC, DST and how large images become."""

    source: Path
    out: Path
    short_side: int
    quality: int


@dataclass(frozen=True)
class Job:
    """One file's work: names below SRC and DST, where the target's folder exists; what was made of it before."""

    name: str
    target: str
    made: Made | None = None


@dataclass(frozen=True)
class Outcome:
    """``state``: written, copied, skipped or bad (then with its ``reason``); bytes of source and target."""

    name: str
    state: str
    before: int = 0
    after: int = 0
    reason: str = ""


class WriteError(Exception):
    """The target cannot be written: no fault of the image, and the next one would fare no better."""


def prepare(work: Work, job: Job) -> Outcome:
    """Do a job unless its target is there already, made from the source as it is. Raises WriteError."""
    source, target = work.source / job.name, work.out / job.target
    try:
        status = source.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited for
            raise ValueError("no regular file")
        mark, there = mark_of(status), _size(target)
        if (made := job.made) is not None and made.mark == mark and made.size == there:
            return Outcome(job.name, "skipped", status.st_size, made.size)
        content = source.read_bytes()
        if not content:
            raise ValueError("empty file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd EXIF data and of size, which is what we are here to reduce
            new = shrink(content, work.short_side, work.quality)
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged files
        _remove(target)
        return Outcome(job.name, "bad", reason=_reason(error))
    kept = content if new is None else new
    _write(target, kept)
    try:
        add_to_record(work.out, job.target, Made(mark, len(kept)))
    except OSError as error:
        raise WriteError(f"{work.out / RECORD} ({error.strerror or error})") from error
    return Outcome(job.name, "copied" if new is None else "written", len(content), len(kept))


def _reason(error: Exception) -> str:
    """One line; the same in every run."""
    if isinstance(error, UnidentifiedImageError):  # its text holds an address in memory
        return f"not an image in one of {', '.join(FORMATS)}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def shrink(content: bytes, short_side: int, quality: int) -> bytes | None:
    """The JPEG to keep of an encoded image; None where it can stay as it is: a baseline JPEG, grey or RGB, small enough.

    Resized with LANCZOS, after the JPEG decoder's own halving (Pillow's draft) down to twice the asked size. Grey stays
    grey, everything else becomes RGB by the rules of training (data/decode.py), before it is resized. Pixels are not
    turned: the EXIF orientation is kept, and of the rest of the metadata the ICC profile alone. Raises DecodeError and
    what Pillow raises.
    """
    with open_image(content) as image:
        size = image.size
        small = min(size) <= short_side
        jpeg = image.format == "JPEG"
        baseline = jpeg and image.mode in _PROFILES and not image.info.get("progressive")
        if jpeg and not small:
            image.draft(image.mode, _scaled(size, _GAP * short_side))
        image.load()  # all pixels, so that a damaged file is found, and before the EXIF data: TIFF turns while it loads
        if small and baseline:
            return None
        orientation = image.getexif().get(ORIENTATION)
        profile = image.info.get("icc_profile") or b""
        plain = image.mode in _PROFILES and "transparency" not in image.info
        pixels: Image.Image = image if plain else Image.fromarray(to_rgb(image))
        if not small:
            pixels = pixels.resize(_scaled(size if jpeg else image.size, short_side), Image.Resampling.LANCZOS)
        return _encode(pixels, quality, orientation, profile)


def _scaled(size: tuple[int, int], short_side: int) -> tuple[int, int]:
    """``size`` with its shorter side at ``short_side``."""
    width, height = size
    least = min(size)
    return max(1, round(width * short_side / least)), max(1, round(height * short_side / least))


def _encode(pixels: Image.Image, quality: int, orientation: object, profile: bytes) -> bytes:
    exif = Image.Exif()
    if orientation in range(2, 9):
        exif[ORIENTATION] = orientation
    # A profile of another colour space (CMYK's) says nothing about these pixels.
    kept = profile if profile[16:20] == _PROFILES[pixels.mode] else None
    file = io.BytesIO()
    pixels.save(file, "JPEG", quality=quality, exif=exif, icc_profile=kept)
    return file.getvalue()


def _size(path: Path) -> int | None:
    """The bytes of a file, None where there is none. Raises OSError, for a name that is too long too."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def unfinished_name(target: Path) -> Path:
    """What is renamed to ``target`` once it is whole."""
    # The same name in every run, so that what a killed one left is replaced; short, as the target's may be at the limit.
    digest = hashlib.sha256(target.name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return target.with_name(f".{digest}.unfinished")


def _write(target: Path, content: bytes) -> None:
    unfinished = unfinished_name(target)
    try:
        unfinished.write_bytes(content)
        os.replace(unfinished, target)
    except OSError as error:
        _remove(unfinished)
        raise WriteError(f"{target} ({error.strerror or error})") from error
    except BaseException:
        _remove(unfinished)
        raise


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # nothing has such a name
            return
        raise WriteError(f"{path} ({error.strerror or error})") from error

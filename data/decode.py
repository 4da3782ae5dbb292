"""Encoded bytes -> (H, W, 3) uint8 RGB, in the order a JPEG decoder leaves it: channels-last from the start.

JPEG by simplejpeg, everything else and whatever that refuses by Pillow; by content, never by suffix.
Rules, the same for training and validation:

- grey becomes three equal channels; 16-bit grey is scaled to 8 bits, not clipped;
- transparency (palette entry, alpha channel or tRNS colour) is composed on white;
- CMYK and YCCK as Pillow converts them;
- EXIF orientation is ignored, as torchvision does, or applied where asked; a TIFF's own Pillow always applies;
- of several frames the first;
- an image of more than ``max_pixels`` pixels is refused before it is decoded.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

try:
    import simplejpeg
except ImportError:  # no wheel for this platform: Pillow decodes all, banner.say_data says so
    simplejpeg = None

BACKGROUND = (255, 255, 255)
# Some of Pillow's plugins log what they then raise; without a handler that goes to stderr, once a file and worker.
logging.getLogger("PIL").addHandler(logging.NullHandler())

# Not every format Pillow has a plugin for: some of those start other programs.
FORMATS = ("JPEG", "PNG", "PPM", "BMP", "DIB", "TIFF", "WEBP", "GIF")
_ORIENTATION = 0x0112
_EXIF_LIMIT = 1 << 16  # a JPEG segment holds no more, and EXIF comes first
_SIDEWAYS = (5, 6, 7, 8)  # EXIF's values for images stored on their side


def describe() -> str:
    """What the start of a run has to say about decoding; nothing where all is as it should be."""
    if simplejpeg is not None:
        return ""
    return "package simplejpeg is not installed: Pillow decodes JPEGs, which takes longer"


class DecodeError(ValueError):
    """Bytes that are no readable image; the text says why."""


class Encoded(Protocol):
    """An image whose header has been read. Sizes are those after an applied orientation."""

    height: int
    width: int

    def decode(self, least_scale: float = 1.0) -> np.ndarray:
        """(H, W, 3) uint8. Where ``least_scale`` is at most 1/2 the image may come smaller, with 4, 3, 2 or 1
        eighths of either side, rounded up, but never below that share of it. Raises DecodeError."""
        ...


class Decoder:
    """``decoder(data)`` reads the header; ``.decode()`` of the result the pixels."""

    def __init__(self, apply_orientation: bool = False, max_pixels: int | None = None) -> None:
        self._apply_orientation = apply_orientation
        self._max_pixels = max_pixels

    def __call__(self, data: bytes) -> Encoded:
        """Raises DecodeError."""
        if not data:
            raise DecodeError("the file is empty")
        if simplejpeg is not None and data[:2] == b"\xff\xd8":
            try:
                height, width, space, _ = simplejpeg.decode_jpeg_header(data)
            except ValueError:
                space = ""  # let Pillow say what is wrong with it, or read it
            if space in ("YCbCr", "Gray", "RGB"):
                self._check_size(width, height)
                return _Jpeg(data, height, width, _jpeg_orientation(data) if self._apply_orientation else 1)
        with _pillow():
            image = open_image(data)
        self._check_size(image.width, image.height)
        if not self._apply_orientation:
            return _Pillow(image, 1)
        with _pillow():
            return _Pillow(image, _orientation(image))

    def _check_size(self, width: int, height: int) -> None:
        limit = self._max_pixels
        if limit is None:
            bound = Image.MAX_IMAGE_PIXELS
            limit = None if bound is None else 2 * bound  # where Pillow itself refuses
        if limit is not None and width * height > limit:
            raise DecodeError(f"{width}x{height} is more than {limit} pixels (--max-image-pixels sets the bound)")


class _Jpeg:
    def __init__(self, data: bytes, height: int, width: int, orientation: int) -> None:
        self._data = data
        self._orientation = orientation
        self._stored = height, width
        self.height, self.width = (width, height) if orientation in _SIDEWAYS else (height, width)

    def decode(self, least_scale: float = 1.0) -> np.ndarray:
        scaled: dict[str, Any] = {}
        eighths = math.ceil(8 * least_scale)
        if eighths <= 4:
            least = [-(-side * eighths // 8) for side in self._stored]
            scaled = {"min_height": least[0], "min_width": least[1], "min_factor": 2}
        try:
            pixels = simplejpeg.decode_jpeg(self._data, **scaled)
        except ValueError:
            # simplejpeg refuses more than Pillow does, such as stray bytes between segments.
            with _pillow():
                image = open_image(self._data)
            if (image.height, image.width) != self._stored:
                raise DecodeError("it names two sizes") from None
            return _Pillow(image, self._orientation).decode(least_scale)
        return _turn(pixels, self._orientation)


class _Pillow:
    def __init__(self, image: Image.Image, orientation: int) -> None:
        self._image = image
        self._orientation = orientation
        sideways = orientation in _SIDEWAYS
        self.height, self.width = (image.width, image.height) if sideways else (image.height, image.width)

    def decode(self, least_scale: float = 1.0) -> np.ndarray:
        image = self._image
        eighths = math.ceil(8 * least_scale)
        with _pillow():
            if eighths <= 4 and image.mode in ("RGB", "L"):
                # It takes the largest of 8, 4, 2 that leaves this many pixels, counted without the rest of the division.
                divisor = 8 // eighths
                image.draft(None, (max(1, image.width // divisor), max(1, image.height // divisor)))
            return _turn(to_rgb(image), self._orientation)


def to_rgb(image: Image.Image) -> np.ndarray:
    """A Pillow image of any mode as (H, W, 3) uint8, by the rules at the top of this file."""
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.int64).clip(0, 65535)
        if "transparency" in image.info:  # one of its 65536 levels stands for no colour
            grey[grey == image.info["transparency"]] = 65535
        return np.repeat(((grey * 255 + 32767) // 65535).astype(np.uint8)[..., None], 3, axis=2)
    if image.mode == "F":
        raise DecodeError("its pixels are floating-point numbers, of which nothing says what white is")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        canvas = Image.new("RGBA", image.size, (*BACKGROUND, 255))
        canvas.alpha_composite(image.convert("RGBA"))
        image = canvas
    return np.array(image.convert("RGB"))  # asarray would be read-only, which torch warns of


def open_image(data: bytes) -> Image.Image:
    """The header of a file in one of FORMATS, by Pillow. Raises what Pillow raises."""
    return Image.open(io.BytesIO(data), formats=FORMATS)


def _jpeg_orientation(data: bytes) -> int:
    # Pillow reads EXIF and, where that has no orientation, XMP, which comes in a segment of its own after it.
    if b"Exif" not in data[:_EXIF_LIMIT] and b"tiff:Orientation" not in data[: 2 * _EXIF_LIMIT]:
        return 1
    with contextlib.suppress(DecodeError), _pillow():
        return _orientation(open_image(data))
    return 1


def _orientation(image: Image.Image) -> int:
    """EXIF's value of an opened image, 1 where its pixels come upright or nothing is known."""
    if image.format == "TIFF":  # Pillow turns these itself
        return 1
    if image.format == "PNG" and "exif" not in image.info:
        image.load()  # the note may follow the pixels: getexif would load too, but what is wrong with them must be heard
    with contextlib.suppress(Exception):  # a damaged note on orientation is no damaged image
        return int(image.getexif().get(_ORIENTATION, 1))
    return 1


def _turn(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """The upright image of one stored with this EXIF orientation, 1 to 8."""
    if orientation not in range(2, 9):
        return pixels
    image = Image.fromarray(pixels)
    image.getexif()[_ORIENTATION] = orientation
    return np.array(ImageOps.exif_transpose(image))


@contextlib.contextmanager
def _pillow() -> Iterator[None]:
    """Around Pillow's work on a file: no warning (one a file and worker would flood the log), no bound on the
    size but ours, and every way in which it refuses a file as a DecodeError."""
    bound = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (DecodeError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise DecodeError(f"not an image in one of {', '.join(FORMATS)}") from None
    # Its plugins let a struct.error, a SyntaxError, an IndexError and others through on damaged files.
    except Exception as error:
        raise DecodeError(" ".join(str(error).split()) or type(error).__name__) from error
    finally:
        Image.MAX_IMAGE_PIXELS = bound

"""Photo-like pixels and image files of many kinds, for tests."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

from data.decode import Decoder


@functools.cache  # callers copy before they change it
def photo(height: int, width: int, seed: int = 0) -> Image.Image:
    """Clouds of every size down to ten pixels, the larger the stronger, more grey than coloured; and the edge of a disc."""
    rng = np.random.default_rng(seed)
    pixels = np.full((height, width, 3), 128.0)
    for cells in (size for size in (2, 4, 8, 16, 32, 64) if size == 2 or 10 * size <= max(height, width)):
        levels = 0.6 * rng.uniform(0, 255, (cells, cells, 1)) + 0.4 * rng.uniform(0, 255, (cells, cells, 3))
        coarse = Image.fromarray(levels.astype(np.uint8))
        pixels += (np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=float) - 128) / cells**0.7
    y, x = np.mgrid[0:height, 0:width]
    pixels[(y - height / 3) ** 2 + (x - width / 2) ** 2 < (min(height, width) / 4) ** 2] += 60
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def smooth(width: int, height: int) -> Image.Image:
    """Three ramps, so that JPEG changes little; every corner differs."""
    rows, columns = np.mgrid[0:height, 0:width]
    layers = [255 * columns / width, 255 * rows / height, 255 * (rows + columns) / (width + height)]
    return Image.fromarray(np.stack(layers, axis=-1).astype(np.uint8))


def ramp16(size: int = 40) -> Image.Image:
    """16-bit grey from 0 to 65535."""
    return Image.fromarray(np.linspace(0, 65535, size * size).reshape(size, size).astype(np.uint16))


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def with_segment(jpeg: bytes, marker: int, payload: bytes) -> bytes:
    """A segment right after the start of the image."""
    return jpeg[:2] + struct.pack(">BBH", 0xFF, marker, len(payload) + 2) + payload + jpeg[2:]


def with_broken_exif(jpeg: bytes, orientation: int = 1) -> bytes:
    """An orientation, and a maker's name said to lie far behind the end of the file."""
    entries = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0) + struct.pack("<HHII", 0x010F, 2, 100, 999999)
    return with_segment(jpeg, 0xE1, b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + entries + struct.pack("<I", 999999))


def with_size(jpeg: bytes, height: int, width: int) -> bytes:
    """The same baseline JPEG, whose frame header claims another size."""
    at = jpeg.index(b"\xff\xc0") + 5
    return jpeg[:at] + struct.pack(">HH", height, width) + jpeg[at + 4 :]


PNG_GREY, PNG_RGB = 0, 2
_PASSES = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


def png(
    pixels: np.ndarray, colour: int = PNG_RGB, interlaced: bool = False, transparent: bytes = b"", late: bytes = b""
) -> bytes:
    """A PNG such as Pillow does not write: 16 bits a channel (uint16 ``pixels``), interlaced, chunks ``late``."""
    depth = 8 * pixels.dtype.itemsize
    big = pixels.astype(pixels.dtype.newbyteorder(">"))
    parts = [big[top::down, left::right] for top, left, down, right in _PASSES] if interlaced else [big]
    rows = b"".join(b"\0" + row.tobytes() for part in parts if part.size for row in part)
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    chunks = [chunk(b"IHDR", header), chunk(b"tRNS", transparent) if transparent else b""]
    return b"\x89PNG\r\n\x1a\n" + b"".join([*chunks, chunk(b"IDAT", zlib.compress(rows)), late, chunk(b"IEND", b"")])


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims a size."""
    tiny = png(np.zeros((1, 1, 3), np.uint8))
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, PNG_RGB, 0, 0, 0))
    return tiny[:8] + header + tiny[8 + len(header) :]


def pixels_of(data: bytes, **options: Any) -> np.ndarray:
    """What ``data.decode`` makes of an encoded image."""
    return Decoder(**options)(data).decode()


def difference(one: Any, other: Any) -> float:
    """Mean absolute difference of two images, in 8-bit levels."""
    return float(np.abs(np.asarray(one).astype(int) - np.asarray(other).astype(int)).mean())


def image_files() -> dict[str, bytes]:
    """One small file of every kind that is read, by a name of its own."""
    image = photo(37, 53)
    palette, rgba = image.quantize(64), image.copy()
    rgba.putalpha(Image.fromarray(np.tile(np.arange(53, dtype=np.uint8) * 4, (37, 1))))
    frames: dict[str, Any] = {"save_all": True, "append_images": [photo(37, 53, 1), photo(37, 53, 2)]}
    files = {
        f"jpeg {name}": encoded(image, "JPEG", **options)
        for name, options in {
            "4:4:4": {"subsampling": "4:4:4"},
            "4:2:2": {"subsampling": "4:2:2"},
            "4:2:0": {"subsampling": "4:2:0"},
            "4:1:1": {"subsampling": "4:1:1"},
            "progressive": {"progressive": True},
            "restart markers": {"restart_marker_blocks": 2},
            "stored as rgb": {"keep_rgb": True},
        }.items()
    }
    files |= {f"jpeg {mode}": encoded(image.convert(mode), "JPEG") for mode in ("L", "CMYK", "1")}
    files |= {f"png {mode}": encoded(image.convert(mode), "PNG") for mode in ("RGB", "L", "1", "P")}
    files |= {f"png {image.mode}": encoded(image, "PNG") for image in (rgba, rgba.convert("LA"), ramp16())}
    files |= {f"webp {lossless}": encoded(rgba, "WEBP", lossless=lossless) for lossless in (False, True)}
    files |= {
        f"tiff {how}": encoded(image, "TIFF", compression=how)
        for how in ("raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")
    }
    files |= {f"tiff {image.mode}": encoded(image, "TIFF") for image in (ramp16(), rgba, palette)}
    return files | {
        "jpeg with exif": with_broken_exif(encoded(image, "JPEG"), 6),
        "jpeg and a trailer": encoded(image, "JPEG") + b"trailer",
        "jpeg with a comment": encoded(image, "JPEG", comment="a comment"),
        "mpo": encoded(image, "MPO", **frames),
        "png 16-bit rgb": png(np.asarray(image).astype(np.uint16) * 257),
        "png interlaced": png(np.asarray(image), interlaced=True),
        "png with a transparent entry": encoded(palette, "PNG", transparency=3),
        "gif": encoded(palette, "GIF", **frames),
        "webp animated": encoded(image, "WEBP", **frames),
        "ppm": encoded(image, "PPM"),
        "pgm 16-bit": encoded(ramp16(), "PPM"),
        "bmp": encoded(image, "BMP"),
    }

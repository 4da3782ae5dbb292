"""What kind of files a source holds, from a sample of them, and what decodes them here."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from importlib import metadata

import numpy as np
import PIL

from data import decode
from data.decode import DecodeError, Decoder
from data.index import SampleIndex

MOST_READ = 256
_STARTS = {
    b"\xff\xd8": "JPEG",
    b"\x89PNG": "PNG",
    b"RIFF": "WEBP",
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
}


@dataclass(frozen=True)
class FileFacts:
    """Of the ``read`` files looked at: mean size in bytes, median pixels, how many of each format."""

    read: int
    mean_bytes: float
    width: float
    height: float
    formats: dict[str, int]

    def describe(self) -> str:
        formats = ", ".join(f"{count} {name}" for name, count in sorted(self.formats.items()))
        return (
            f"{self.mean_bytes / 1024:.1f} KiB on average, {self.width:.0f}x{self.height:.0f} pixels (medians), "
            f"of {self.read} files looked at ({formats})"
        )


def look_at_files(index: SampleIndex, most: int = MOST_READ) -> FileFacts:
    """Read up to ``most`` files, evenly spread over the index; unreadable ones are left out."""
    sizes, widths, heights = [], [], []
    formats: dict[str, int] = {}
    decoder = Decoder()
    for number in np.unique(np.linspace(0, len(index) - 1, min(most, len(index))).astype(int)).tolist():
        try:
            data = index.read(number)
            image = decoder(data)
        except (OSError, DecodeError):
            continue
        sizes.append(len(data))
        widths.append(image.width)
        heights.append(image.height)
        name = format_of(data)
        formats[name] = formats.get(name, 0) + 1
    if not sizes:
        return FileFacts(0, 0.0, 0.0, 0.0, {})
    return FileFacts(len(sizes), statistics.mean(sizes), statistics.median(widths), statistics.median(heights), formats)


def format_of(data: bytes) -> str:
    """The format that the first bytes name; ``other`` for what has no fixed start."""
    return next((name for start, name in _STARTS.items() if data.startswith(start)), "other")


def jpeg_decoder() -> str:
    """What decodes JPEG here, with its version."""
    if decode.simplejpeg is None:
        return f"Pillow {PIL.__version__}"
    try:
        return f"simplejpeg {metadata.version('simplejpeg')}"
    except metadata.PackageNotFoundError:
        return "simplejpeg"

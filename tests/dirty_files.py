"""Files as they are found in real image folders: some that no decoder reads, and some that only look so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from helpers import write_image
from pictures import bomb, encoded, photo, ramp16, with_broken_exif
from PIL import Image


def write_cut(path: Path) -> None:
    """The first half of a JPEG, as an interrupted copy leaves it."""
    write_image(path, size=64)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def write_empty(path: Path) -> None:
    path.write_bytes(b"")


def write_html(path: Path) -> None:
    """What a download script saves for a missing page."""
    path.write_bytes(b"<!DOCTYPE html><html><body>404 Not Found</body></html>")


def write_random(path: Path) -> None:
    path.write_bytes(np.random.default_rng(7).bytes(900))


def write_bomb(path: Path) -> None:
    """A few bytes that claim 900 million pixels."""
    path.write_bytes(bomb(30000, 30000))


def write_float(path: Path) -> None:
    """Pixels of which nothing says what white is."""
    path.write_bytes(encoded(Image.new("F", (40, 40), 0.5), "TIFF"))


KINDS = {"cut.jpg": write_cut, "empty.jpg": write_empty, "html.jpg": write_html, "random.jpg": write_random}


ALL_KINDS = {**KINDS, "bomb.png": write_bomb, "float.jpg": write_float}


def odd_but_good() -> dict[str, bytes]:
    """One file of each kind that some loader or other stumbles over, by a name of its own."""
    image = photo(40, 56)
    palette, see_through = image.quantize(64), image.copy()
    see_through.putalpha(Image.fromarray(np.tile(np.arange(56, dtype=np.uint8) * 4, (40, 1))))
    turned = Image.Exif()
    turned[0x0112] = 6
    return {
        "a_png.JPEG": encoded(image, "PNG"),
        "alpha.png": encoded(see_through, "PNG"),
        "cmyk.jpg": encoded(image.convert("CMYK"), "JPEG"),
        "damaged_exif.jpg": with_broken_exif(encoded(image, "JPEG"), 6),
        "grey.jpg": encoded(image.convert("L"), "JPEG"),
        "grey16.png": encoded(ramp16(), "PNG"),
        "palette.png": encoded(palette, "PNG", transparency=bytes(range(256))),
        "PROGRESSIVE.JPG": encoded(image, "JPEG", progressive=True),
        "turned.jpg": encoded(image, "JPEG", exif=turned),
        "web.webp": encoded(image, "WEBP"),
    }


def spoil(folder: Path, prefix: str = "", kinds: Mapping[str, Callable[[Path], None]] = KINDS) -> list[Path]:
    """Add one bad file of each kind to a class folder; their paths."""
    paths = []
    for name, write in kinds.items():
        paths.append(folder / (prefix + name))
        write(paths[-1])
    return paths

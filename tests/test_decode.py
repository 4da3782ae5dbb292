"""Files of every kind become uint8 RGB by the documented rules."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers import make_folder
from pictures import (
    PNG_GREY,
    chunk,
    difference,
    encoded,
    image_files,
    opened,
    photo,
    pixels_of,
    png,
    ramp16,
    with_broken_exif,
)
from PIL import Image, ImageOps
from torch.utils.data import DataLoader

from data import decode
from data.dataset import ImageDataset
from data.decode import DecodeError, Decoder
from data.folder import scan_data_dir
from data.transforms import ValTransform

FILES = image_files()
pytestmark = pytest.mark.usefixtures("no_warning")


def on_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    return Image.composite(rgba.convert("RGB"), Image.new("RGB", rgba.size, "white"), rgba.getchannel("A"))


@pytest.mark.parametrize("kind", FILES)
def test_every_kind_is_what_pillow_makes_of_it(kind: str, either: str):
    """With transparency on white; 16-bit grey has a test of its own, as Pillow clips it."""
    header = Decoder()(FILES[kind])
    pixels = header.decode()
    assert pixels.dtype == np.uint8
    assert pixels.shape == (header.height, header.width, 3)
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    if kind not in ("png I;16", "tiff I;16", "pgm 16-bit"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Pillow itself says of a broken EXIF
            expected = on_white(opened(FILES[kind]))
        assert difference(pixels, expected) < 0.5


def test_only_jpegs_that_simplejpeg_takes_go_to_it(monkeypatch: pytest.MonkeyPatch):
    """By content: the whole of each of these is decoded by one of the two."""
    asked = []
    inner = decode.simplejpeg.decode_jpeg
    monkeypatch.setattr(decode.simplejpeg, "decode_jpeg", lambda data, **how: asked.append(data) or inner(data, **how))
    for data in FILES.values():
        pixels_of(data)
    assert [kind for kind, data in FILES.items() if data in asked] == [
        kind for kind in FILES if kind.startswith(("jpeg", "mpo")) and kind != "jpeg CMYK"
    ]


def test_sixteen_bits_are_scaled_not_clipped(either: str):
    """R10: a ramp over all of them keeps its levels, in every format that stores it."""
    expected = np.round(np.asarray(ramp16()) / 257)
    for kind in ("png I;16", "tiff I;16", "pgm 16-bit"):
        pixels = pixels_of(FILES[kind])
        assert len(np.unique(pixels)) > 200
        assert np.array_equal(pixels, np.repeat(expected[..., None], 3, axis=2))


def test_grey_is_three_equal_channels(either: str):
    for kind in ("jpeg L", "png L", "png 1", "png LA"):
        pixels = pixels_of(FILES[kind])
        assert pixels.std() > 1
        assert (pixels == pixels[..., :1]).all()


def test_transparency_is_white():
    """R08: 256 entries of a palette, an alpha channel, one colour, one of 65536 levels of grey."""
    palette = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).convert("RGB").quantize(256)
    clear = pixels_of(encoded(palette, "PNG", transparency=bytes(256)))
    assert (clear == 255).all()
    half = encoded(Image.new("LA", (4, 4), (0, 128)), "PNG")
    assert (pixels_of(half) == 127).all()
    for mode, colour in (("RGB", (9, 8, 7)), ("L", 9)):
        assert (pixels_of(encoded(Image.new(mode, (4, 4), colour), "PNG", transparency=colour)) == 255).all()
    grey = np.array([[300, 301]], np.uint16)
    assert pixels_of(png(grey, PNG_GREY, transparent=b"\x01\x2c"))[0, :, 0].tolist() == [255, 1]


def test_cmyk_is_not_inverted(either: str):
    """R05: as Adobe stores it, plain and as YCCK."""
    image = photo(64, 96)
    inverted = 255 - np.asarray(image.convert("CMYK"))
    simplejpeg = pytest.importorskip("simplejpeg")
    ycck = simplejpeg.encode_jpeg(np.ascontiguousarray(inverted), colorspace="CMYK", quality=90)
    assert simplejpeg.decode_jpeg_header(ycck)[2] == "YCCK"
    for data in (encoded(image.convert("CMYK"), "JPEG", quality=90), ycck):
        pixels = pixels_of(data)
        assert difference(pixels, image) < 15
        assert np.array_equal(pixels, np.asarray(opened(data).convert("RGB")))


# Orientation


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_where_asked(orientation: int, form: str, either: str):
    """R11. Pillow itself turns TIFFs, so that asking must not turn them twice."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    how = {"tiffinfo": {0x0112: orientation}} if form == "TIFF" else {"exif": exif}
    data = encoded(photo(20, 40), form, **how)
    turned = ImageOps.exif_transpose(opened(data)).convert("RGB")
    upright = turned if form == "TIFF" else opened(data).convert("RGB")
    for apply, expected in ((True, turned), (False, upright)):
        header = Decoder(apply)(data)
        assert (header.width, header.height) == expected.size
        assert np.array_equal(header.decode(), np.asarray(expected))
    assert turned.size == ((20, 40) if orientation > 4 else (40, 20))


def test_a_turned_image_is_scaled_too(either: str):
    data = with_broken_exif(encoded(photo(200, 400), "JPEG"), 6)
    assert Decoder(True)(data).decode(0.5).shape == (200, 100, 3)


def test_an_orientation_in_xmp_is_one_too(either: str):
    """Where EXIF has none: with simplejpeg as without it."""
    packet = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    plain = encoded(Image.new("RGB", (40, 20)), "JPEG")
    data = plain[:2] + b"\xff\xe1" + (len(packet) + 2).to_bytes(2, "big") + packet + plain[2:]
    assert pixels_of(data, apply_orientation=True).shape == (40, 20, 3)
    assert pixels_of(data).shape == (20, 40, 3)


def test_a_png_may_bring_its_orientation_late(either: str):
    """Behind the pixels; without one, what is wrong with the pixels is still heard."""
    exif = Image.Exif()
    exif[0x0112] = 6
    late = chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0"))
    assert pixels_of(png(np.zeros((20, 40, 3), np.uint8), late=late), apply_orientation=True).shape == (40, 20, 3)
    cut = png(np.zeros((20, 40, 3), np.uint8), late=late)[:-18]
    for apply in (True, False):
        with pytest.raises(DecodeError):
            pixels_of(cut, apply_orientation=apply)


@pytest.mark.parametrize("apply", [False, True])
def test_a_damaged_note_is_no_damaged_image(apply: bool, either: str, tmp_path: Path, capfd: pytest.CaptureFixture):
    """R07: EXIF that points past the end. Nothing is said about it, in a worker neither."""
    make_folder(tmp_path, train=3, val=1, size=24)
    for path in tmp_path.glob("train/*/*.jpg"):
        path.write_bytes(with_broken_exif(encoded(photo(20, 40), "JPEG"), 6))
    source = ImageDataset(scan_data_dir(str(tmp_path))[0], Decoder(apply), ValTransform(8, 8, "bilinear"))
    for workers in (0, 2):
        batches = list(
            DataLoader(source, batch_sampler=[[(0, 0), (0, 1)], [(0, 5)]], num_workers=workers, collate_fn=list)
        )
        assert [len(batch[1]) for batch in batches] == [2, 1]
    header = Decoder(apply)(with_broken_exif(encoded(photo(20, 40), "JPEG"), 6))
    assert (header.width, header.height) == ((20, 40) if apply else (40, 20))
    assert capfd.readouterr() == ("", "")


# Scaling in the DCT


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (5, 3), (16, 16), (101, 203), (224, 224), (300, 1)])
def test_a_scaled_image_keeps_the_least_share(size: tuple[int, int], either: str):
    header = Decoder()(encoded(photo(*size), "JPEG"))
    for least in (1.0, 0.9, 0.51, 0.5, 0.4, 3 / 8, 0.3, 0.25, 0.2, 0.125, 0.01):
        pixels = (
            header.decode(least) if either == "simplejpeg" else Decoder()(encoded(photo(*size), "JPEG")).decode(least)
        )
        assert pixels.dtype == np.uint8
        for side, whole in zip(pixels.shape[:2], size, strict=True):
            assert whole >= side >= whole * least
        if least > 0.5:
            assert pixels.shape[:2] == size
        if min(size) > 100:
            eighths = {0.5: 4, 0.4: 4, 3 / 8: 3, 0.3: 3, 0.25: 2, 0.2: 2, 0.125: 1, 0.01: 1}.get(least, 8)
            if eighths == 3 and either == "pillow alone":
                eighths = 4  # Pillow has halves, quarters and eighths only
            assert pixels.shape[:2] == tuple(-(-whole * eighths // 8) for whole in size)


def test_a_scaled_image_shows_the_same(either: str):
    data = encoded(photo(203, 301), "JPEG", quality=95)
    for least, eighths in ((0.5, 4), (0.25, 2)):
        pixels = Decoder()(data).decode(least)
        box = opened(data).resize(pixels.shape[1::-1], Image.Resampling.BOX, (0, 0, 301, 203))
        assert pixels.shape[0] == -(-203 * eighths // 8)
        assert difference(pixels, box) < 3

"""scripts/resize_image.py: what becomes of one image."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from pictures import PNG_GREY, encoded, image_files, png, ramp16, smooth
from PIL import Image, ImageCms

from data.decode import DecodeError, Decoder

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import resize_image  # noqa: E402

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def oriented(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[resize_image.ORIENTATION] = value
    exif[0x010F] = "maker"
    return exif


def shrunk(content: bytes, short_side: int = 16) -> Image.Image:
    new = resize_image.shrink(content, short_side, 92)
    assert new is not None
    image = Image.open(io.BytesIO(new))
    assert image.format == "JPEG"
    image.load()
    return image


@pytest.mark.parametrize(
    ("size", "new"),
    [
        ((200, 100), (32, 16)),
        ((100, 200), (16, 32)),
        ((17, 17), (16, 16)),
        ((2000, 333), (96, 16)),
        ((1601, 801), (32, 16)),
    ],
)
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_the_shorter_side_is_as_asked(size: tuple[int, int], new: tuple[int, int], form: str) -> None:
    image = shrunk(encoded(smooth(*size), form))
    assert image.size == new
    wanted = smooth(*size).resize(new, Image.Resampling.LANCZOS)
    assert np.abs(np.asarray(image, int) - np.asarray(wanted, int)).mean() < 3


@pytest.mark.parametrize(
    ("content", "mode"),
    [
        (encoded(smooth(12, 12), "JPEG", progressive=True), "RGB"),
        (encoded(smooth(12, 12).convert("CMYK"), "JPEG"), "RGB"),
        (encoded(smooth(12, 12), "PNG"), "RGB"),
        (encoded(smooth(12, 12).convert("RGBA"), "PNG"), "RGB"),
        (encoded(smooth(12, 12).convert("P"), "PNG"), "RGB"),
        (encoded(smooth(12, 12).convert("L"), "PNG"), "L"),
        (encoded(smooth(12, 12).convert("LA"), "PNG"), "RGB"),
        (encoded(smooth(12, 12).convert("I"), "TIFF"), "RGB"),
        (encoded(smooth(12, 12), "WEBP"), "RGB"),
    ],
)
def test_everything_else_that_is_small_is_encoded_anew(content: bytes, mode: str) -> None:
    image = shrunk(content)
    assert (image.size, image.mode, image.info.get("progressive")) == ((12, 12), mode, None)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("value", [1, 3, 6, 8])
def test_the_orientation_tag_is_kept_and_nothing_is_turned(form: str, value: int) -> None:
    image = shrunk(encoded(smooth(64, 32), form, exif=oriented(value)))
    assert image.size == (32, 16)
    assert dict(image.getexif()) == ({resize_image.ORIENTATION: value} if value > 1 else {})


def test_a_tiff_that_pillow_turns_has_no_tag_left() -> None:
    image = shrunk(encoded(smooth(64, 32), "TIFF", exif=oriented(6)))
    assert (image.size, dict(image.getexif())) == ((16, 32), {})


def test_the_profile_is_kept_where_it_fits() -> None:
    assert shrunk(encoded(smooth(40, 40), "JPEG", icc_profile=SRGB)).info["icc_profile"] == SRGB
    assert shrunk(encoded(smooth(40, 40), "PNG", icc_profile=SRGB)).info["icc_profile"] == SRGB
    assert "icc_profile" not in shrunk(encoded(smooth(40, 40).convert("L"), "JPEG", icc_profile=SRGB)).info


def as_trained(data: bytes) -> Image.Image:
    return Image.fromarray(Decoder()(data).decode())


def transparent() -> dict[str, bytes]:
    """Files that say in each way there is that something is see-through, over pixels of a colour of their own."""
    image = smooth(53, 37)
    rgba = image.copy()
    rgba.putalpha(Image.fromarray(np.tile(np.arange(53, dtype=np.uint8) * 4, (37, 1))))
    return {
        "palette with an alpha each": encoded(image.quantize(8), "PNG", transparency=bytes(range(0, 256, 32))),
        "one grey is transparent": encoded(image.convert("L").point(lambda level: level & 192), "PNG", transparency=64),
        "one colour is transparent": encoded(image.point(lambda level: level & 128), "PNG", transparency=(128, 0, 0)),
        "one 16-bit grey is transparent": png(
            np.asarray(ramp16()) & 0xC000, PNG_GREY, transparent=(0x8000).to_bytes(2, "big")
        ),
        "webp": encoded(rgba, "WEBP", lossless=True),
        "tiff": encoded(rgba.convert("LA"), "TIFF"),
    }


ODD = image_files() | transparent()


@pytest.mark.parametrize("short_side", [20, 100], ids=["resized", "small already"])
@pytest.mark.parametrize("kind", ODD)
def test_training_sees_what_it_would_see_of_the_original(kind: str, short_side: int) -> None:
    """Whatever is in the file: white behind what is transparent, 16 bits scaled to 8."""
    new = resize_image.shrink(ODD[kind], short_side, 95)
    before, after = as_trained(ODD[kind]), as_trained(new or ODD[kind])
    wanted = as_trained(encoded(before.resize(after.size, Image.Resampling.LANCZOS), "JPEG", quality=95))
    assert np.abs(np.asarray(after, int) - np.asarray(wanted, int)).mean() < 3


@pytest.mark.parametrize("short_side", [20, 100], ids=["resized", "small already"])
def test_floating_point_pixels_are_bad(short_side: int) -> None:
    with pytest.raises(DecodeError, match="floating-point"):
        resize_image.shrink(encoded(smooth(40, 40).convert("F"), "TIFF"), short_side, 92)

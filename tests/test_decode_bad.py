"""What is no image, what is one all the same, what claims too much; and a machine without simplejpeg."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import make_folder
from pictures import bomb, difference, encoded, image_files, opened, photo, pixels_of, with_segment, with_size
from PIL import Image

from data import decode
from data.dataset import ImageDataset
from data.decode import DecodeError, Decoder
from data.folder import scan_data_dir
from data.transforms import TrainTransform, ValTransform

FILES = image_files()
pytestmark = pytest.mark.usefixtures("no_warning")


def half(kind: str) -> bytes:
    return FILES[kind][: len(FILES[kind]) // 2]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "not an image in one of JPEG"),
        (random.Random(0).randbytes(4096), "not an image in one of JPEG"),
        (b"\xff\xd8", "not an image"),
        (b"\xff\xd8\xff", "not an image"),
        (encoded(Image.new("F", (4, 4)), "TIFF"), "floating-point"),
        (half("jpeg 4:2:0"), "runcated"),
        (half("jpeg progressive"), "runcated"),
        (half("png RGB"), "runcated|broken"),
        (FILES["png RGB"][:20], "not an image|runcated"),
        (FILES["gif"][:400], "."),  # half of the file would hold the first frame
        (half("webp True"), "."),
        (half("tiff tiff_lzw"), "."),
        (half("ppm"), "truncated"),
    ],
)
def test_what_is_no_image_has_a_reason(data: bytes, reason: str, either: str):
    with pytest.raises(DecodeError, match=reason) as caught:
        pixels_of(data)
    assert "\n" not in str(caught.value)


def test_a_png_named_jpeg_is_a_png(tmp_path: Path):
    """R04."""
    folder = make_folder(tmp_path, train=1, val=1, size=8)
    (folder / "val/a/000.jpg").unlink()
    (folder / "val/a/x.JPEG").write_bytes(FILES["png RGB"])
    source = ImageDataset(scan_data_dir(str(folder))[1], Decoder(), ValTransform(8, 8, "bilinear"))
    assert source[0, 0].bad == []
    assert source.index.name(0).endswith("x.JPEG")


def test_what_simplejpeg_refuses_goes_to_pillow(monkeypatch: pytest.MonkeyPatch):
    """Stray bytes: between segments, which its header refuses, and between restart intervals."""
    whole = encoded(photo(40, 60), "JPEG", restart_marker_blocks=2)
    at = whole.index(b"\xff\xd1")
    for data in (with_segment(whole, 0xFE, b"abc")[:9] + b"\1\2\3" + whole[2:], whole[:at] + b"\1\2\3" + whole[at:]):
        with pytest.raises(ValueError, match="extraneous"):
            decode.simplejpeg.decode_jpeg(data)
        assert np.array_equal(pixels_of(data), np.asarray(opened(data)))
        assert Decoder()(data).decode(0.5).shape == (20, 30, 3)
    turned = decode._Jpeg(data, 40, 60, 6)
    assert np.array_equal(turned.decode(), np.rot90(np.asarray(opened(data)), -1))
    with pytest.raises(DecodeError, match="two sizes"):
        decode._Jpeg(data, 40, 61, 1).decode()


# Bombs


def test_a_file_that_claims_too_much_is_refused_before_its_pixels(either: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    jpeg = with_size(FILES["jpeg 4:2:0"], 30000, 20000)
    for data, size in ((bomb(30000, 30000), "30000x30000"), (bomb(30000, 8000), "30000x8000"), (jpeg, "20000x30000")):
        for apply in (False, True):
            with pytest.raises(DecodeError, match=f"{size} is more than 178956970 pixels .--max-image-pixels"):
                Decoder(apply)(data)
    with pytest.raises(DecodeError, match="100x10 is more than 999 pixels"):
        Decoder(max_pixels=999)(bomb(100, 10))


def test_the_bound_may_be_above_pillows_own(either: str, monkeypatch: pytest.MonkeyPatch):
    """R23."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    for kind in ("png RGB", "png P", "jpeg 4:2:0", "jpeg CMYK", "tiff raw", "webp True", "gif"):
        with pytest.raises(DecodeError, match="53x37 is more than 200 pixels"):
            Decoder()(FILES[kind])
        for apply in (False, True):
            assert Decoder(apply, max_pixels=53 * 37)(FILES[kind]).decode().shape == (37, 53, 3)
        with pytest.raises(DecodeError, match="more than 1960"):
            Decoder(max_pixels=53 * 37 - 1)(FILES[kind])
    assert Image.MAX_IMAGE_PIXELS == 100
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert pixels_of(FILES["png RGB"]).shape == (37, 53, 3)


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_a_bomb_is_a_bad_image_with_a_path(policy: str, run, tmp_path: Path, monkeypatch, capsys):
    folder = make_folder(tmp_path / "images", train=8, val=2, size=16)
    (folder / "train/a/000.jpg").write_bytes(encoded(photo(30, 30), "PNG"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 16 * 16)
    flags = f"{folder} -a toy_models:tiny --b 4 --image-size 16 --epochs 1 --workers 0 --tensorboard false --bad-images {policy}"
    code = run(base=flags)
    if policy == "fail":
        assert code == 5
        assert "train/a/000.jpg (class a): 30x30 is more than 512 pixels" in capsys.readouterr().err
    else:
        assert code == 0
        (listed,) = tmp_path.glob("runs/*/bad_images.txt")
        assert "train/a/000.jpg" in listed.read_text()


# Without simplejpeg


def test_the_start_says_that_pillow_decodes(run, tmp_path: Path, monkeypatch, capsys):
    """Once, and only where there are files to decode."""
    folder = make_folder(tmp_path / "images", train=4, val=1, size=16)
    flags = "-a toy_models:tiny --b 4 --image-size 16 --epochs 1 --workers 0 --tensorboard false"
    said = []
    for simplejpeg, data in ((decode.simplejpeg, folder), (None, folder), (None, "--synthetic-size 8 --num-classes 2")):
        monkeypatch.setattr(decode, "simplejpeg", simplejpeg)
        assert run(base=f"{data} {flags}") == 0
        captured = capsys.readouterr()
        said.append((captured.out + captured.err).count("simplejpeg is not installed"))
    assert said == [0, 1, 0]


def test_both_decoders_give_the_same_training_pixels(monkeypatch: pytest.MonkeyPatch):
    """Nearly: Pillow cannot scale to three eighths, and takes four."""
    data = encoded(photo(120, 160), "JPEG")
    rows = []
    for simplejpeg in (decode.simplejpeg, None):
        monkeypatch.setattr(decode, "simplejpeg", simplejpeg)
        rows.append(torch.empty(10, 32, 32, 3, dtype=torch.uint8))
        for index, row in enumerate(rows[-1]):
            TrainTransform(32, (0.08, 1.0), 0.5, "bilinear", 0)(Decoder()(data), 0, index, row)
    assert 0 < difference(rows[0].numpy(), rows[1].numpy()) < 2

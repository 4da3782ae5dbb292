"""Crop, resize and flip: distributed as torchvision's, pixels as Pillow's, with and without scaling in the DCT."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from pictures import difference, encoded, opened, photo, png
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from data import decode, transforms
from data.decode import Decoder
from data.transforms import TrainTransform, ValTransform, random_crop, resize_channels_last, sample_seed

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
either_filter = pytest.mark.parametrize("interpolation", FILTERS)


class Blank:
    """An image of a size, decoded as small as a decoder may; keeps no pixels."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width

    def decode(self, least_scale: float = 1.0) -> np.ndarray:
        eighths = next((number for number in (1, 2, 3, 4) if number / 8 >= least_scale), 8)
        shape = -(-self.height * eighths // 8), -(-self.width * eighths // 8), 3
        return np.zeros(shape, np.uint8)


def row_of(transform: TrainTransform | ValTransform, image: decode.Encoded, epoch: int = 0, index: int = 0) -> Tensor:
    """The row before it is written is neither black nor white."""
    row = torch.full((transform.size, transform.size, 3), 77, dtype=torch.uint8)
    transform(image, epoch, index, row)
    return row


@pytest.fixture
def factors(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """By how much each JPEG was scaled down, in eighths."""
    seen: list[int] = []
    inner = decode.simplejpeg.decode_jpeg

    def spy(data: bytes, **how: int) -> np.ndarray:
        pixels = inner(data, **how)
        seen.append(8 * pixels.shape[0] // opened(data).height)
        return pixels

    monkeypatch.setattr(decode.simplejpeg, "decode_jpeg", spy)
    return seen


# Pixels


@either_filter
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize(
    ("height", "width", "size"),
    [(403, 601, 64), (400, 400, 48), (333, 517, 97), (37, 53, 64), (1, 60, 16), (640, 480, 33)],
)
def test_training_pixels_are_pillows(
    height: int, width: int, size: int, form: str, interpolation: str, factors: list[int]
):
    data = encoded(photo(height, width), form, **({"quality": 95} if form == "JPEG" else {}))
    transform = TrainTransform(size, (0.08, 1.0), 0.5, interpolation, seed=3)
    differences = []
    for index in range(16):
        generator = random.Random(sample_seed(3, 1, index))
        top, left, crop_height, crop_width = random_crop(generator, height, width, (0.08, 1.0))
        box = (left, top, left + crop_width, top + crop_height)
        expected = opened(data).convert("RGB").crop(box).resize((size, size), FILTERS[interpolation])
        if generator.random() < 0.5:
            expected = expected.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        differences.append(difference(row_of(transform, Decoder()(data), 1, index), expected))
        if form == "JPEG":
            assert (factors[-1] <= 4) == (min(crop_height, crop_width) >= 2 * size)
    scaled = [factor <= 4 for factor in factors] or [False] * 16
    assert all(found < 0.5 for found, less in zip(differences, scaled, strict=True) if not less)
    assert np.mean([found for found, less in zip(differences, scaled, strict=True) if less] or [0]) < 2
    assert max(differences) < 4  # a crop starts at a whole pixel of the scaled image
    if form == "JPEG" and height in (400, 640):
        assert ({4} if height == 400 else {1, 2}) <= set(factors)


@either_filter
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize(
    ("height", "width", "resize", "size"),
    [
        (301, 450, 111, 96),
        (451, 300, 111, 96),
        (401, 803, 96, 67),
        (611, 303, 75, 72),
        (333, 500, 50, 50),
        (500, 334, 83, 40),
        (20, 31, 40, 33),
        (20, 31, 40, 1),
        (7, 5, 16, 15),
        (1, 1, 9, 8),
        (640, 480, 256, 224),
    ],
)
def test_validation_pixels_are_torchvisions(
    height: int, width: int, resize: int, size: int, form: str, interpolation: str, factors: list[int]
):
    data = encoded(photo(height, width), form, **({"quality": 95} if form == "JPEG" else {}))
    mode = InterpolationMode(interpolation)
    expected = v2.Compose([v2.Resize(resize, interpolation=mode), v2.CenterCrop(size)])(opened(data).convert("RGB"))
    found = row_of(ValTransform(size, resize, interpolation), Decoder()(data))
    assert difference(found, expected) < (1 if form == "JPEG" else 0.2)
    if form == "JPEG":
        assert (factors[-1] <= 4) == (2 * resize <= min(height, width))


@either_filter
@pytest.mark.parametrize("shape", [(1, 5000), (5000, 1), (3, 301), (300, 3), (4, 2001)], ids=str)
def test_a_thin_strip_costs_no_more_than_a_picture(
    shape: tuple[int, int], interpolation: str, monkeypatch: pytest.MonkeyPatch
):
    """Its centre is that of the whole strip, resized to hundreds of thousands of pixels."""
    asked: list[tuple[int, int]] = []

    def spy(pixels: np.ndarray, size: tuple[int, int], *how) -> Tensor:
        asked.append(size)
        return resize_channels_last(pixels, size, *how)

    monkeypatch.setattr(transforms, "resize_channels_last", spy)
    data = encoded(photo(*shape), "PNG")
    found = row_of(ValTransform(28, 32, interpolation), Decoder()(data))
    assert max(asked[0]) <= 9 * 32
    mode = InterpolationMode(interpolation)
    expected = v2.Compose([v2.Resize(32, interpolation=mode), v2.CenterCrop(28)])(opened(data))
    assert difference(found, expected) < 1


# How little a decoder may leave


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (15, 15), (16, 16), (20, 7)], ids=str)
def test_a_scaled_crop_never_has_to_be_enlarged(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    """Wherever the crop itself had not to be, at any place and of any size; and the result has the size asked for."""
    shapes: list[tuple[int, ...]] = []

    def spy(pixels: np.ndarray, *how) -> Tensor:
        shapes.append(pixels.shape[:2])
        return resize_channels_last(pixels, *how)

    monkeypatch.setattr(transforms, "resize_channels_last", spy)
    generator = random.Random(str(size))
    for _ in range(3000):
        whole = generator.randint(1, 150), generator.randint(1, 150)
        crop = generator.randint(1, whole[0]), generator.randint(1, whole[1])
        corner = generator.randint(0, whole[0] - crop[0]), generator.randint(0, whole[1] - crop[1])
        assert transforms._crop_and_resize(Blank(*whole), (*corner, *crop), size, "bilinear").shape == (1, 3, *size)
        if all(side >= 2 * least for side, least in zip(crop, size, strict=True)):
            assert all(least <= found for found, least in zip(shapes[-1], size, strict=True))
            assert all(found <= -(-side // 2) for found, side in zip(shapes[-1], crop, strict=True))
        else:
            assert shapes[-1] == crop


# Memory


@either_filter
def test_the_resize_is_fed_and_gives_channels_last(interpolation: str, monkeypatch: pytest.MonkeyPatch):
    """Else it takes torch's slow path: a crop is a view of a larger image, and one row or column tells no format."""
    seen: list[Tensor] = []
    inner = torch.nn.functional.interpolate

    def spy(image: Tensor, **how) -> Tensor:
        seen.extend([image, inner(image, **how)])
        return seen[-1]

    monkeypatch.setattr(transforms.functional, "interpolate", spy)
    whole = np.array(photo(60, 80))
    for part in (whole, whole[3:50, 7:60], whole[::-1].copy(), whole[:1], whole[:, 5:6], whole[4:5, 4:5].copy()):
        result = resize_channels_last(part, (24, 24), interpolation)
        assert result.data_ptr() == seen[-1].data_ptr()
        for image in seen[-2:]:
            height, width = image.shape[2:]
            assert image.dtype == torch.uint8
            assert image.stride() == (height * width * 3, 1, width * 3, 3)
    assert len(seen) == 12


def test_a_crop_of_the_right_size_is_taken_as_it_is():
    header = Decoder()(png(np.asarray(photo(24, 24))))
    row = row_of(ValTransform(24, 24, "bicubic"), header)
    assert np.array_equal(row.numpy(), np.asarray(photo(24, 24)))


def test_every_pixel_of_a_row_is_written():
    """And none beside it."""
    rows = torch.full((3, 8, 8, 3), 77, dtype=torch.uint8)
    black = Decoder()(png(np.zeros((20, 30, 3), np.uint8)))
    for transform in (TrainTransform(8, (0.1, 1.0), 0.5, "bilinear", 0), ValTransform(8, 9, "bilinear")):
        rows.fill_(77)
        transform(black, 0, 0, rows[1])
        assert rows.flatten(1).sum(1).tolist() == [77 * 192, 0, 77 * 192]

"""Crops and flips are distributed as torchvision's."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from pictures import encoded, photo
from torch import Tensor
from torchvision.transforms import v2

from data import decode
from data.decode import Decoder
from data.transforms import RATIO, TrainTransform, ValTransform, random_crop


def row_of(transform: TrainTransform | ValTransform, image: decode.Encoded, epoch: int = 0, index: int = 0) -> Tensor:
    """The row before it is written is neither black nor white."""
    row = torch.full((transform.size, transform.size, 3), 77, dtype=torch.uint8)
    transform(image, epoch, index, row)
    return row


def crop_of(theirs: v2.RandomResizedCrop, image: Tensor) -> list[int]:
    """Drawn by torchvision."""
    params = theirs.make_params([image])
    return [params[name] for name in ("top", "left", "height", "width")]


# Crops

SHAPES = [(375, 500), (64, 64), (501, 20), (20, 501), (2000, 3), (7, 5), (1, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.5, 0.9)], ids=str)
def test_crops_are_distributed_as_torchvisions(scale: tuple[float, float], shape: tuple[int, int]):
    """Means of sides, places, area, aspect and their squares, over 3000 draws each, within five standard errors."""
    count, (height, width) = 3000, shape
    generator, image = random.Random(0), torch.empty(3, height, width)
    theirs = v2.RandomResizedCrop(8, scale=scale, ratio=RATIO)
    torch.manual_seed(0)
    drawn = []
    for draw in (
        lambda: random_crop(generator, height, width, scale),
        lambda: crop_of(theirs, image),
    ):
        boxes = np.array([draw() for _ in range(count)], dtype=float)
        top, left, crop_height, crop_width = boxes.T
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:] > 0).all()
        assert (top + crop_height <= height).all()
        assert (left + crop_width <= width).all()
        first = np.stack([*(boxes / [height, width, height, width]).T, crop_height * crop_width / (height * width)])
        first = np.concatenate([first, [np.log(crop_width / crop_height), (left + crop_width / 2) / width]])
        drawn.append(np.concatenate([first, first**2]))
    ours, others = drawn
    error = np.sqrt((ours.var(axis=1) + others.var(axis=1)) / count)
    assert (np.abs(ours.mean(axis=1) - others.mean(axis=1)) <= 5 * error + 1e-12).all()


@pytest.mark.parametrize("shape", [(30, 2000), (2000, 30), (1, 9), (9, 1), (1, 5000)], ids=str)
def test_where_no_crop_fits_the_centre_is_taken(shape: tuple[int, int]):
    theirs = v2.RandomResizedCrop(8, scale=(1.0, 1.0), ratio=RATIO)
    expected = crop_of(theirs, torch.empty(3, *shape))
    assert list(random_crop(random.Random(0), *shape, (1.0, 1.0))) == expected


def test_flips_come_as_often_as_asked():
    image = photo(40, 40)
    header = Decoder()(encoded(image, "PNG"))
    plain = [row_of(TrainTransform(8, (1.0, 1.0), 0.0, "bilinear", 1), header, 0, index) for index in range(300)]
    always = [row_of(TrainTransform(8, (1.0, 1.0), 1.0, "bilinear", 1), header, 0, index) for index in range(300)]
    some = [row_of(TrainTransform(8, (1.0, 1.0), 0.3, "bilinear", 1), header, 0, index) for index in range(300)]
    assert all(torch.equal(one.flip(1), other) for one, other in zip(plain, always, strict=True))
    flipped = sum(torch.equal(one, other) for one, other in zip(some, always, strict=True))
    assert 60 < flipped < 120
    assert flipped + sum(torch.equal(one, other) for one, other in zip(some, plain, strict=True)) == 300

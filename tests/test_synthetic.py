"""Made-up images: a small pool from the seed, in which the class can be seen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from data.synthetic import POOL_SIZE, SyntheticImages, build_synthetic


def make(size: int, classes: int, **kwargs) -> SyntheticImages:
    return SyntheticImages(size, classes, 12, seed=1, **kwargs)


def pool(images: SyntheticImages) -> tuple[Tensor, Tensor]:
    return images.batch([(0, index) for index in range(len(images))])


def test_synthetic_images_repeat_a_small_pool():
    images = make(5000, 3)
    assert len(images) == 5000
    assert len(images._pool) == POOL_SIZE == 512
    same, labels = images.batch([(0, 5), (7, 5 + 512), (0, 4999)])
    assert torch.equal(same[0], same[1])
    assert labels.tolist() == [5 % 3, 5 % 3, 4999 % 512 % 3]
    assert len(make(20, 3)._pool) == 20


def test_synthetic_images_follow_the_seed():
    assert torch.equal(pool(make(30, 3))[0], pool(make(30, 3))[0])
    assert not torch.equal(pool(make(30, 3))[0], pool(SyntheticImages(30, 3, 12, seed=2))[0])
    assert SyntheticImages(4, 3, 12, seed=2**63 - 1).batch([(0, 1)])[0].dtype == torch.uint8


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_the_class_of_a_synthetic_image_can_be_seen(classes: int):
    """The nearest class mean of the training images tells the class of validation images it never saw."""
    train, val = make(600, classes), make(60, classes, validation=True)
    (images, labels), (unseen, expected) = pool(train), pool(val)
    assert not any(torch.equal(one, two) for one in images[:60] for two in unseen)
    seen = labels.unique()
    means = torch.stack([images[labels == label].double().mean(0) for label in seen]).flatten(1)
    nearest = seen[torch.cdist(unseen.double().flatten(1), means).argmin(1)]
    assert torch.equal(nearest, expected)


@pytest.mark.parametrize(("size", "least", "expected"), [(25000, 256, 2500), (100, 256, 256), (9, 1, 1)])
def test_synthetic_validation_is_a_tenth_and_at_least_a_batch(size: int, least: int, expected: int):
    train, val = build_synthetic(size, 10, (8, 12), 0, least)
    assert (len(train), len(val)) == (size, expected)
    assert train.batch([(0, 0)])[0].shape == (1, 3, 8, 8)
    assert val.batch([(0, 0)])[0].shape == (1, 3, 12, 12)


@pytest.mark.parametrize("build", [lambda: make(10, 2), lambda: make(700, 600)])
def test_synthetic_batches_are_channels_last(build: Callable[[], SyntheticImages]):
    images, labels = build().batch([(0, 3), (0, 1)])
    assert images.dtype == torch.uint8
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.dtype == torch.int64

"""Mixup and CutMix: what they make of images and targets, from the run's own seed, in the batch's own memory format."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from data.feed import DeviceFeed, FeedOptions
from data.loaders import HostOptions, TrainLoader
from data.mixing import Mixer
from data.sampler import StepSampler
from data.synthetic import SyntheticImages
from trainer.metrics import RunningSums
from trainer.models import TrainingLoss

CPU = torch.device("cpu")
CLASSES = 5
FORMATS = (torch.contiguous_format, torch.channels_last)
MIXUP, CUTMIX, BOTH = (0.4, 0.0), (0.0, 1.0), (0.4, 1.0)
ways = pytest.mark.parametrize("alphas", [MIXUP, CUTMIX], ids=["mixup", "cutmix"])


def mixer(alphas: tuple[float, float] = BOTH, seed: int = 0, rank: int = 0) -> Mixer:
    return Mixer(*alphas, CLASSES, seed, rank)


def batch_of(count: int, memory_format: torch.memory_format = torch.channels_last, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 3, 10, 14, generator=generator).to(dtype).to(memory_format=memory_format)
    return images, torch.arange(count) % CLASSES


def share_of(target: Tensor) -> float:
    """Of the first image in itself, read off the targets of a batch whose neighbours differ in class."""
    return target[0, 0].item()


@ways
@pytest.mark.parametrize("batch", range(6))
def test_an_image_and_its_target_are_mixed_in_the_same_share(alphas: tuple[float, float], batch: int):
    before, labels = batch_of(CLASSES)
    images, target = mixer(alphas)(before.clone(), labels, 0, batch)
    share, others = share_of(target), before.roll(1, 0)
    one_hot = torch.eye(CLASSES)
    assert target.dtype == torch.float32
    assert torch.allclose(target, share * one_hot + (1 - share) * one_hot.roll(1, 0), atol=1e-6)
    if alphas is MIXUP:
        assert torch.allclose(images, share * before + (1 - share) * others, atol=1e-6)
        return
    own = (images == before).all(1)
    assert torch.equal(images, torch.where(own[:, None], before, others))
    assert (own == own[0]).all()
    assert own[0].float().mean().item() == pytest.approx(share, abs=1e-6)
    if not own.all():
        rows, columns = (~own[0]).any(1).nonzero(), (~own[0]).any(0).nonzero()
        assert (~own[0]).sum() == (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)


def test_shares_are_drawn_as_the_papers_say():
    """Mixup's from Beta(A, A), CutMix's rectangle from the same; of two, each takes about half of the batches."""
    images, labels = batch_of(2)
    shares = np.array([share_of(mixer((0.4, 0.0))(images, labels, 0, batch)[1]) for batch in range(2000)])
    expected = np.random.default_rng(0).beta(0.4, 0.4, 2000)
    assert shares.mean() == pytest.approx(expected.mean(), abs=0.04)
    assert shares.std() == pytest.approx(expected.std(), abs=0.02)
    pasted = np.array([share_of(mixer((0.0, 1.0))(images, labels, 0, batch)[1]) for batch in range(500)])
    assert 0.5 < pasted.mean() < 0.8  # what the edge cuts off goes to the image itself
    blended = 0
    for batch in range(400):
        before, labels = batch_of(2)
        after, _ = mixer()(before.clone(), labels, 0, batch)
        blended += bool(((after != before) & (after != before.roll(1, 0))).any())
    assert 160 < blended < 240


@ways
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_the_batch_keeps_memory_format_and_dtype(
    count: int, memory_format: torch.memory_format, dtype: torch.dtype, alphas: tuple[float, float]
):
    """In place; the pieces of --micro-batch too. No image at all, and one alone, are batches as well."""
    images, labels = batch_of(count, memory_format, dtype)
    before, strides = images.clone(), images.stride()
    mixed, target = mixer(alphas)(images, labels, 0, 3)
    assert mixed.data_ptr() == images.data_ptr()
    assert (mixed.dtype, mixed.stride(), mixed.shape) == (dtype, strides, before.shape)
    assert target.shape == (count, CLASSES)
    assert torch.allclose(target.sum(1), torch.ones(count))
    assert all(piece.stride() == strides for piece in mixed.tensor_split(3) if len(piece))
    if count == 1:
        assert torch.allclose(mixed.float(), before.float(), atol=1e-2)
        assert target.tolist() == [[1, 0, 0, 0, 0]]


def test_the_draw_follows_seed_rank_epoch_and_batch():
    images, labels = batch_of(2)
    drawn = {
        (seed, rank, epoch, batch): share_of(mixer(MIXUP, seed, rank)(images, labels, epoch, batch)[1])
        for seed in (0, 1) for rank in (0, 1) for epoch in (0, 1) for batch in (0, 1)
    }  # fmt: skip
    assert len(set(drawn.values())) == 16
    assert drawn[1, 1, 0, 1] == share_of(mixer(MIXUP, 1, 1)(images, labels, 0, 1)[1])


@ways
def test_global_generators_are_neither_used_nor_moved(alphas: tuple[float, float]):
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        before = torch.get_rng_state(), random.getstate()
        found.append(mixer(alphas)(*batch_of(4), 0, 0)[0])
        assert torch.equal(torch.get_rng_state(), before[0])
        assert random.getstate() == before[1]
    assert torch.equal(*found)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@ways
def test_the_loss_is_that_of_both_labels_in_their_shares(alphas: tuple[float, float], smoothing: float):
    images, labels = batch_of(CLASSES)
    targets = [mixer(alphas)(images.clone(), labels, 0, batch)[1] for batch in range(20)]
    target = min(targets, key=lambda one: abs(share_of(one) - 0.4))
    share = share_of(target)
    logits = torch.randn(CLASSES, CLASSES, generator=torch.Generator().manual_seed(1))
    own, other = (cross_entropy(logits, label, label_smoothing=smoothing) for label in (labels, labels.roll(1)))
    assert 0.2 < share < 0.6
    assert TrainingLoss(smoothing)(logits, target).item() == pytest.approx((share * own + (1 - share) * other).item())


@ways
def test_accuracy_is_against_the_label_with_the_larger_share(alphas: tuple[float, float]):
    images, labels = batch_of(CLASSES)
    for batch in range(8):
        _, target = mixer(alphas)(images.clone(), labels, 0, batch)
        larger = labels if share_of(target) > 0.5 else labels.roll(1)
        sums = RunningSums(CPU)
        sums.add(torch.zeros(()), torch.eye(CLASSES)[larger], target)
        assert sums.take()[1] == CLASSES


# In the feed


def feed_options(memory_format: torch.memory_format = torch.channels_last, dtype: torch.dtype = torch.float32):
    return FeedOptions(CPU, (0.5,) * 3, (0.2,) * 3, dtype, memory_format)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_what_leaves_the_feed_has_the_format_mixed_or_not(memory_format: torch.memory_format, dtype: torch.dtype):
    images = SyntheticImages(16, CLASSES, 12, 0)
    batches = [images.batch([(0, index) for index in range(count)]) for count in (8, 8, 1)]
    pool = images._pool.clone()
    for mix in (None, mixer()):
        for (raw, _), (found, _) in zip(
            batches, DeviceFeed(batches, feed_options(memory_format, dtype), mix), strict=True
        ):
            assert found.dtype == dtype
            assert found.stride() == torch.empty(raw.shape).to(memory_format=memory_format).stride()
            assert found.is_contiguous(memory_format=memory_format)
    assert torch.equal(images._pool, pool)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_resumed_epoch_mixes_as_the_whole_one(accumulated: int):
    def walk(epoch: int, consumed: int, rank: int = 1) -> list[tuple[Tensor, Tensor]]:
        source, share = SyntheticImages(64, CLASSES, 12, 0), (rank, 2)
        sampler = StepSampler(64, 4, *share, accumulated)
        return list(TrainLoader(source, sampler, HostOptions(), feed_options(), mixer()).epoch(epoch, consumed)[1])

    whole = walk(1, 0)
    assert len(whole) == 8
    for done in range(0, 8, accumulated):
        rest = walk(1, done * 8)
        assert len(rest) == 8 - done
        for one, other in zip(whole[done:], rest, strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])

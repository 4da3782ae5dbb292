"""Batches: channels-last bytes from images, normalised on the device, the same with any number of workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import make_folder
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from data.collate import as_batch, new_rows
from data.dataset import ImageDataset
from data.decode import Decoder
from data.feed import DeviceFeed, FeedOptions
from data.folder import scan_data_dir
from data.loaders import HostOptions, TrainLoader, ValLoader
from data.sampler import StepSampler
from data.synthetic import build_synthetic
from data.transforms import TrainTransform, ValTransform, sample_seed

CPU = torch.device("cpu")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FORMATS = (torch.contiguous_format, torch.channels_last)


def options(memory_format: torch.memory_format = torch.channels_last, dtype: torch.dtype = torch.float32):
    return FeedOptions(CPU, MEAN, STD, dtype, memory_format)


def random_pixels(seed: int, size: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("loaders"), train=14, val=5, size=20)


@pytest.fixture
def train_set(folder: Path) -> ImageDataset:
    return ImageDataset(
        scan_data_dir(str(folder))[0], Decoder(), TrainTransform(16, (0.3, 1.0), 0.5, "bilinear", seed=4)
    )


@pytest.fixture
def val_set(folder: Path) -> ImageDataset:
    return ImageDataset(scan_data_dir(str(folder))[1], Decoder(), ValTransform(16, 18, "bicubic"))


# Collate


def bytes_batch(seeds: range, height: int = 12):
    rows = new_rows(len(seeds), height)
    for row, seed in zip(rows, seeds, strict=True):
        row.copy_(torch.from_numpy(random_pixels(seed, height)))
    return as_batch(rows, [7 - seed for seed in seeds], [])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_batch_is_the_buffer_itself_as_a_channels_last_view(count: int):
    """R59: the strides of a channels-last batch, one image too."""
    rows = new_rows(5, 12)
    batch = as_batch(rows, list(range(count)), [])
    assert batch.images.shape == (count, 3, 12, 12)
    assert batch.images.dtype == torch.uint8
    assert batch.images.stride() == (12 * 12 * 3, 1, 12 * 3, 3)
    assert batch.images.is_contiguous(memory_format=torch.channels_last)
    assert batch.images.data_ptr() == rows.data_ptr()
    assert batch.target.dtype == torch.int64
    assert batch.target.tolist() == list(range(count))


# Device feed


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
def test_feed_normalises_into_the_asked_format_and_dtype(memory_format: torch.memory_format, dtype: torch.dtype):
    batches = [bytes_batch(range(count))[:2] for count in (4, 1)]
    for (raw, _), (images, target) in zip(batches, DeviceFeed(batches, options(memory_format, dtype)), strict=True):
        expected = (raw.double() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
        assert images.dtype == dtype
        assert images.stride() == torch.empty(images.shape).to(memory_format=memory_format).stride()
        assert torch.allclose(images.double(), expected, atol=1e-5 if dtype is torch.float32 else 2e-2)
        assert target.dtype == torch.int64


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("source", ["folder", "synthetic"])
def test_every_batch_has_the_format_the_short_last_one_too(
    source: str, memory_format: torch.memory_format, request: pytest.FixtureRequest
):
    """R58: of both splits."""
    if source == "folder":
        train_set, val_set = request.getfixturevalue("train_set"), request.getfixturevalue("val_set")
    else:
        train_set, val_set = build_synthetic(28, 2, (16, 16), 0, 10)
    train = TrainLoader(train_set, StepSampler(28, 8), HostOptions(), options(memory_format))
    val = ValLoader(val_set, 4, (0, 1), HostOptions(), options(memory_format))
    plans, batches = train.epoch(0)
    for loader, sizes in ((batches, [8, 8, 8, 4]), (val, [4, 4, 2])):
        images = [images for images, _ in loader]
        assert [len(batch) for batch in images] == sizes
        assert all(batch.shape[1:] == (3, 16, 16) for batch in images)
        assert all(batch.is_contiguous(memory_format=memory_format) for batch in images)
        assert all(batch.is_contiguous(memory_format=torch.channels_last) for batch in images) == (
            memory_format is torch.channels_last
        )
    assert [plan.batch_sizes for plan in plans] == [(8,), (8,), (8,), (4,)]
    assert (val.images, len(val)) == (10, 3)


def test_only_a_gpu_asks_for_pinned_memory(train_set: ImageDataset, monkeypatch: pytest.MonkeyPatch):
    """R96: a CPU run with pinned memory would warn."""
    asked = []

    def loader(*args, pin_memory, **kwargs):
        asked.append(pin_memory)
        return DataLoader(*args, **kwargs)

    monkeypatch.setattr("data.loaders.WorkerLoader", loader)
    TrainLoader(train_set, StepSampler(28, 8), HostOptions(), options())
    assert asked == [False]


# Randomness


def test_pixels_follow_seed_epoch_and_index_whatever_the_workers(train_set: ImageDataset):
    """Two epochs, the second from its middle; workers live on between them."""

    def walk(workers: int, rank: int, world: int) -> dict[tuple[int, int], Tensor]:
        loader = TrainLoader(train_set, StepSampler(28, 8 // world, rank, world), HostOptions(workers), options())
        pixels = {}
        for epoch, consumed in ((0, 0), (1, 8)):
            _, batches = loader.epoch(epoch, consumed)
            keys = [key for batch in loader.sampler for key in batch]
            images = torch.cat([images for images, _ in batches])
            pixels.update(zip(keys, images, strict=True))
        return pixels

    alone = walk(0, 0, 1)
    assert len(alone) == 28 + 20
    for others in (walk(2, 0, 1), {**walk(0, 0, 2), **walk(0, 1, 2)}):
        assert others.keys() == alone.keys()
        assert all(torch.equal(alone[key], others[key]) for key in alone)
    both = [key for key in alone if key[0] == 1]
    assert not any(torch.equal(alone[0, index], alone[epoch, index]) for epoch, index in both)


def test_another_seed_is_another_crop(folder: Path, train_set: ImageDataset):
    other = ImageDataset(
        scan_data_dir(str(folder))[0], Decoder(), TrainTransform(16, (0.3, 1.0), 0.5, "bilinear", seed=5)
    )
    assert torch.equal(train_set[0, 3].images, train_set[0, 3].images)
    assert not torch.equal(train_set[0, 3].images, other[0, 3].images)


def test_sample_seeds_differ_and_fit_a_generator():
    seeds = {sample_seed(seed, epoch, index) for seed in (0, 1) for epoch in (0, 1, 11) for index in (0, 1, 110)}
    assert len(seeds) == 18
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_leaves_the_global_generators_alone(
    workers: int, train_set: ImageDataset, val_set: ImageDataset, monkeypatch: pytest.MonkeyPatch
):
    """Dropout draws from torch's generators, on the CPU and on a GPU."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    before = torch.get_rng_state()
    for _ in TrainLoader(train_set, StepSampler(28, 8), HostOptions(workers), options()).epoch(0)[1]:
        assert torch.equal(torch.get_rng_state(), before)
    list(ValLoader(val_set, 4, (0, 1), HostOptions(workers), options()))
    assert torch.equal(torch.get_rng_state(), before)
    assert seeded == []


def test_validation_shows_the_centre_every_time(val_set: ImageDataset):
    first, second = (
        torch.cat([images for images, _ in ValLoader(val_set, 4, (0, 1), HostOptions(), options())]) for _ in range(2)
    )
    assert torch.equal(first, second)


def test_shares_of_validation_cover_the_labels(val_set: ImageDataset):
    targets = []
    for rank in range(3):
        targets += [target for _, target in ValLoader(val_set, 2, (rank, 3), HostOptions(), options())]
    assert sorted(torch.cat(targets).tolist()) == [0] * 5 + [1] * 5


def test_an_unreadable_image_is_named_with_its_class(folder: Path, train_set: ImageDataset, tmp_path: Path):
    index, _ = scan_data_dir(str(make_folder(tmp_path, train=1, val=1, size=8)))
    Path(index.name(1)).write_bytes(b"not an image")
    broken = ImageDataset(index, Decoder(), ValTransform(8, 8, "bilinear"))
    batch = broken[0, 1]
    assert len(batch.target) == len(batch.images) == 0
    ((number, name, class_name, reason),) = batch.bad
    assert (number, name, class_name) == (1, index.name(1), "b")
    assert "not an image" in reason
    with pytest.raises(OSError, match=r"cannot read .*train/b/000.jpg \(class b\): not an image"):
        list(ValLoader(broken, 8, (0, 1), HostOptions(), options()))


def test_grey_and_palette_images_become_rgb(tmp_path: Path):
    make_folder(tmp_path, train=1, val=1, size=8)
    Image.new("L", (8, 8), 200).save(tmp_path / "val/a/grey.png")
    Image.new("P", (8, 8), 3).save(tmp_path / "val/a/palette.png")
    val = ImageDataset(scan_data_dir(str(tmp_path))[1], Decoder(), ValTransform(8, 8, "bilinear"))
    ((images, _),) = ValLoader(val, 8, (0, 1), HostOptions(), options())
    assert images.shape == (4, 3, 8, 8)

"""torchvision's augmentations in the loader: of the sample's own randomness, and of nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import make_folder
from pictures import encoded, photo
from torch import Tensor

from data.augment import build_augment
from data.build import DataOptions, open_sources
from data.dataset import ImageDataset
from data.decode import Decoder
from data.feed import FeedOptions
from data.folder import scan_data_dir
from data.loaders import HostOptions, TrainLoader
from data.sampler import StepSampler
from data.transforms import TrainTransform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NAMES = ("ra", "ta_wide", "imagenet", "augmix")


def sources(folder: Path, interpolation: str = "bilinear", **changed):
    plain = {"auto_augment": None, "random_erase": 0.0, "hflip": 0.5, "crop_scale": (0.3, 1.0)} | changed
    options = DataOptions(
        image_size=24, val_image_size=24, val_resize=26, interpolation=interpolation, seed=4, synthetic_size=8,
        num_classes=2, val_batch_size=4, mean=MEAN, exif_orientation="ignore", max_image_pixels=None, **plain,
    )  # fmt: skip
    train, val = open_sources(scan_data_dir(str(folder)), options)
    assert isinstance(train, ImageDataset)
    assert isinstance(val, ImageDataset)
    return train, val


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("augment"), train=10, val=4, size=40)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("name", NAMES)
def test_every_policy_acts_on_training_images_alone(name: str, interpolation: str, folder: Path):
    """With bicubic resizing too, which torchvision's rotations of tensors do not know."""
    plain, augmented = sources(folder, interpolation), sources(folder, interpolation, auto_augment=name)
    keys = [(epoch, index) for epoch in range(4) for index in range(20)]
    before, after = plain[0].__getitems__(keys).images, augmented[0].__getitems__(keys).images
    changed = (before != after).flatten(1).any(1).sum()
    assert after.stride() == before.stride() == (24 * 24 * 3, 1, 24 * 3, 3)
    assert after.dtype == torch.uint8
    assert changed > len(keys) / 2
    assert torch.equal(plain[1][0, 3].images, augmented[1][0, 3].images)


def test_nothing_asked_for_is_nothing_done():
    assert build_augment(None, 0.0, MEAN) is None


def test_erased_rectangles_become_zero_and_come_as_often_as_asked(folder: Path):
    """The mean colour is what normalisation turns into zeros."""
    (plain, _), (erased, _) = sources(folder), sources(folder, random_erase=0.25)
    keys = [(epoch, index) for epoch in range(20) for index in range(20)]
    before, after = plain.__getitems__(keys).images, erased.__getitems__(keys).images
    where = (before != after).any(1)
    assert 60 < where.flatten(1).any(1).sum() < 140
    normalised = (after / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    assert normalised.permute(0, 2, 3, 1)[where].abs().max() < 0.01


@pytest.mark.parametrize("name", NAMES)
def test_pixels_follow_seed_epoch_and_index_whatever_the_workers(name: str, folder: Path):
    """0, 1 and 4 workers, two ranks, and an epoch entered in its middle."""
    train, _ = sources(folder, auto_augment=name, random_erase=0.5)
    feed = FeedOptions(torch.device("cpu"), MEAN, STD, torch.float32, torch.channels_last)

    def walk(workers: int, rank: int = 0, world: int = 1, consumed: int = 0) -> dict[tuple[int, int], Tensor]:
        loader = TrainLoader(train, StepSampler(20, 4 // world, rank, world), HostOptions(workers), feed)
        _, batches = loader.epoch(1, consumed)
        keys = [key for batch in loader.sampler for key in batch]
        return dict(zip(keys, torch.cat([images for images, _ in batches]), strict=True))

    alone = walk(0)
    assert len(alone) == 20
    for other in (walk(1), walk(4), {**walk(0, 0, 2), **walk(0, 1, 2)}, walk(1, consumed=8)):
        assert len(other) in (12, 20)
        assert all(torch.equal(alone[key], pixels) for key, pixels in other.items())


@pytest.mark.parametrize("name", NAMES)
def test_global_generators_are_neither_used_nor_moved(name: str, folder: Path):
    train, _ = sources(folder, auto_augment=name, random_erase=0.5)
    keys = [(0, index) for index in range(20)]
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        before = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
        found.append(train.__getitems__(keys).images)
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (random.getstate(), str(np.random.get_state())) == before[1:]
    assert torch.equal(*found)


def test_crop_and_flip_do_not_depend_on_the_augmentation():
    """What augments is given is what would have been the sample without it."""
    given: list[Tensor] = []

    def watch(pixels: Tensor) -> Tensor:
        given.append(pixels.clone())
        return 255 - pixels

    header = Decoder()(encoded(photo(40, 50), "PNG"))
    for index in range(8):
        rows = torch.zeros(2, 16, 16, 3, dtype=torch.uint8)
        TrainTransform(16, (0.2, 1.0), 0.5, "bilinear", 0)(header, 0, index, rows[0])
        TrainTransform(16, (0.2, 1.0), 0.5, "bilinear", 0, watch)(header, 0, index, rows[1])
        assert given[-1].shape == (3, 16, 16)
        assert torch.equal(given[-1].permute(1, 2, 0), rows[0])
        assert torch.equal(rows[1], 255 - rows[0])


# Runs

FLAGS = "-a toy_models:tiny --b 4 --image-size 24 --epochs 1 --tensorboard false --channels-last true"


@pytest.mark.parametrize("name", NAMES)
def test_a_run_with_everything_on(name: str, run, folder: Path, capsys: pytest.CaptureFixture[str]):
    flags = f"--auto-augment {name} --random-erase 0.25 --mixup 0.2 --cutmix 1 --interpolation bicubic --workers 1"
    assert run(base=f"{folder} {FLAGS} {flags}") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("augmentation")]
    assert line == (
        f"augmentation: {name}, random erase 0.25, mixup 0.2, cutmix 1 (each batch takes one of these two); "
        "training accuracy is against the label with the larger share of each image"
    )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", []),
        ("--aa ra", ["augmentation: ra; made-up images go without ra"]),
        (
            "--mixup 0.2",
            [
                "augmentation: mixup 0.2; training accuracy is against the label with the larger share of each image",
            ],
        ),
    ],
)
def test_the_start_says_what_is_on(flags: str, expected: list[str], run, capsys: pytest.CaptureFixture[str]):
    assert run(*flags.split()) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("augmentation")] == expected

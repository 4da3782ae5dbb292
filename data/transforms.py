"""Crop, resize and flip of one Pillow image, seeded by (seed, epoch, sample index) alone.

The same sample in the same epoch gets the same pixels with any number of workers or ranks, and
after a resume.
"""

from __future__ import annotations

import hashlib

import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2


class TrainTransform:
    """Random resized crop and left-right flip to (size, size)."""

    def __init__(self, size: int, crop_scale: tuple[float, float], hflip: float, interpolation: str, seed: int) -> None:
        self.seed = seed
        self._transform = v2.Compose(
            [
                v2.RandomResizedCrop(size, scale=crop_scale, interpolation=InterpolationMode(interpolation)),
                v2.RandomHorizontalFlip(hflip),
            ]
        )

    def __call__(self, image: Image.Image, epoch: int, index: int) -> Image.Image:
        # torchvision draws from torch's global generator: seed it for this sample alone, and in the
        # main process (workers 0) leave it to the model's dropout as it was. Not torch.manual_seed, which
        # would seed the generators of the GPUs too.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(sample_seed(self.seed, epoch, index))
            return self._transform(image)


class ValTransform:
    """Shorter side to ``resize``, then the central (size, size)."""

    def __init__(self, size: int, resize: int, interpolation: str) -> None:
        self._transform = v2.Compose(
            [v2.Resize(resize, interpolation=InterpolationMode(interpolation)), v2.CenterCrop(size)]
        )

    def __call__(self, image: Image.Image, epoch: int, index: int) -> Image.Image:
        return self._transform(image)


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """63 bits that differ for neighbouring samples, epochs and seeds."""
    digest = hashlib.blake2b(f"{seed}/{epoch}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1

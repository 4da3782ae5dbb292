"""Crop, resize and flip on uint8 channels-last, seeded by (seed, draw, sample index) alone, where the draw is the epoch
or tells the copies of a sample in one apart (see ``data.sampler``).

The same sample in the same draw gets the same pixels with any number of workers or ranks, and
after a resume. Crops are distributed as torchvision's ``RandomResizedCrop`` draws them (area and
logarithm of the aspect ratio uniform, Szegedy et al., arXiv:1409.4842).
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from data.decode import Encoded

Box = tuple[int, int, int, int]  # top, left, height, width
RATIO = (3 / 4, 4 / 3)
_TRIES = 10


class Transform(Protocol):
    """Writes one sample into its row of the batch."""

    size: int

    def __call__(self, image: Encoded, draw: int, index: int, row: Tensor) -> None:
        """``row``: (size, size, 3) uint8, contiguous. Raises DecodeError."""
        ...


class TrainTransform:
    """Random resized crop and left-right flip to the row's size; ``augment`` sees (3, size, size) uint8 after them."""

    def __init__(
        self,
        size: int,
        crop_scale: tuple[float, float],
        hflip: float,
        interpolation: str,
        seed: int,
        augment: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.size = size
        self.seed = seed
        self._crop_scale = crop_scale
        self._hflip = hflip
        self._interpolation = interpolation
        self._augment = augment

    def __call__(self, image: Encoded, draw: int, index: int, row: Tensor) -> None:
        seed = sample_seed(self.seed, draw, index)
        generator = random.Random(seed)
        box = random_crop(generator, image.height, image.width, self._crop_scale)
        flip = generator.random() < self._hflip
        pixels = _crop_and_resize(image, box, (row.shape[0], row.shape[1]), self._interpolation)
        if flip:
            # A second copy, yet quicker than one copy by a reversed view: this one moves many pixels at a time.
            pixels = pixels.flip(3)
        if self._augment is not None:
            pixels = self._augmented(pixels[0], seed)[None]
        row.copy_(pixels[0].permute(1, 2, 0))

    def _augmented(self, pixels: Tensor, seed: int) -> Tensor:
        # torchvision draws from torch's global generator: seed it for this sample alone, and in the
        # main process (workers 0) leave it to the model's dropout as it was. Not torch.manual_seed, which
        # would seed the generators of the GPUs too.
        assert self._augment is not None
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self._augment(pixels)


class ValTransform:
    """Shorter side to ``resize``, then the central (size, size); ``resize`` is at least ``size``."""

    def __init__(self, size: int, resize: int, interpolation: str) -> None:
        self.size = size
        self._resize = resize
        self._interpolation = interpolation

    def __call__(self, image: Encoded, draw: int, index: int, row: Tensor) -> None:
        short = min(image.height, image.width)
        (top, seen_height), (left, seen_width) = _middle(image.height, short), _middle(image.width, short)
        height, width = (int(self._resize * side / short) for side in (seen_height, seen_width))
        whole = _crop_and_resize(image, (top, left, seen_height, seen_width), (height, width), self._interpolation)
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        row.copy_(whole[0, :, top : top + self.size, left : left + self.size].permute(1, 2, 0))


def random_crop(generator: random.Random, height: int, width: int, scale: tuple[float, float]) -> Box:
    """A box of a random share of the area and a random aspect ratio; the centre where none of ten tries fits."""
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for _ in range(_TRIES):
        area = height * width * generator.uniform(*scale)
        ratio = math.exp(generator.uniform(low, high))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = generator.randint(0, height - crop_height)
            left = generator.randint(0, width - crop_width)
            return top, left, crop_height, crop_width
    crop_height = min(height, max(1, round(width / RATIO[0])))
    crop_width = min(width, max(1, round(height * RATIO[1])))
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def sample_seed(seed: int, draw: int, index: int) -> int:
    """63 bits that differ for neighbouring samples, draws and seeds."""
    digest = hashlib.blake2b(f"{seed}/{draw}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _crop_and_resize(image: Encoded, box: Box, size: tuple[int, int], interpolation: str) -> Tensor:
    """(1, 3, *size) uint8, channels-last: the part ``box`` of the image, resized with antialiasing.

    The decoder may leave out detail that the resize would, but never so much that it had to enlarge.
    """
    top, left, height, width = box
    pixels = image.decode(max(size[0] / height, size[1] / width))
    # The decoder rounds its eighths of a side up, so their number is that of the longer side, rounded down.
    eighths = 8 * max(pixels.shape[:2]) // max(image.height, image.width)
    rows = _scaled(top, height, eighths, pixels.shape[0])
    columns = _scaled(left, width, eighths, pixels.shape[1])
    shares = None if eighths == 8 else (8 * size[0] / (height * eighths), 8 * size[1] / (width * eighths))
    return resize_channels_last(pixels[rows, columns], size, interpolation, shares)


def _scaled(start: int, length: int, eighths: int, side: int) -> slice:
    # Whole numbers, the length rounded up: no pixel of the crop is lost, and it never has to be enlarged.
    scaled = -(-length * eighths // 8)
    first = min((start * eighths + 4) // 8, side - scaled)
    return slice(first, first + scaled)


def _middle(side: int, short: int) -> tuple[int, int]:
    """Start and length of what validation looks at. A strip of 1 x 5000 pixels would else be resized to
    256 x 1280000; beyond eight squares nothing shows in the central one."""
    seen = min(side, 8 * short + (side - 8 * short) % 2)
    return (side - seen) // 2, seen


def resize_channels_last(
    pixels: np.ndarray, size: tuple[int, int], interpolation: str, shares: tuple[float, float] | None = None
) -> Tensor:
    """(H, W, 3) uint8 array, any strides -> (1, 3, *size) uint8 with channels-last strides.

    ``shares``: what ``size`` is of the sides where these are no whole number of pixels, and the last row or column
    lies partly outside; else the result would be stretched by up to a pixel.
    """
    # The batch axis first, then contiguous, then NCHW: added after the permute it has a stride of 3, with which
    # the result would come back as NCHW and take half as long again.
    image = torch.from_numpy(pixels)[None].contiguous().permute(0, 3, 1, 2)
    if image.shape[2:] == size:
        return image
    if shares is None:
        return functional.interpolate(image, size=size, mode=interpolation, antialias=True)
    # torch rounds the size that these give down: a hair more, lest it be a pixel too few.
    factors = [share * (1 + 1e-9) for share in shares]
    return functional.interpolate(image, scale_factor=factors, mode=interpolation, antialias=True)

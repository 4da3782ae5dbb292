"""Made-up images in which the class can be seen: a coarse coloured pattern a class, under noise.

A pool of at most 512 images is made once from the seed and mapped onto any size of data set, so
that it costs neither memory nor time in the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

POOL_SIZE = 512
_GRID = 4
_NOISE = 48


class SyntheticImages:
    """``size`` images (H = W = ``image_size``), uint8; sample i shows pool image i modulo the pool's size.

    ``size_of``: from a draw to pixels a side, where that is not always ``image_size``: pixels of the pool are left out.
    """

    def __init__(
        self,
        size: int,
        num_classes: int,
        image_size: int,
        seed: int,
        validation: bool = False,
        size_of: Callable[[int], int] | None = None,
    ) -> None:
        self.size = size
        self.classes = [str(label) for label in range(num_classes)]
        count = min(POOL_SIZE, size)
        patterns = np.random.Generator(np.random.Philox(key=[seed, 1])).integers(
            32, 224, (min(num_classes, count), _GRID, _GRID, 3), dtype=np.int16
        )
        noise = np.random.Generator(np.random.Philox(key=[seed, 3 if validation else 2]))
        cells = np.arange(image_size) * _GRID // image_size
        self._labels = torch.arange(count) % len(patterns)
        pool = np.empty((count, image_size, image_size, 3), dtype=np.uint8)
        for index in range(count):
            pattern = patterns[index % len(patterns)][cells][:, cells]
            pool[index] = pattern + noise.integers(-_NOISE, _NOISE, pattern.shape, dtype=np.int16).clip(-32, 31)
        self._whole = self._pool = torch.from_numpy(pool)
        self._size_of = size_of

    def __len__(self) -> int:
        return self.size

    def batch(self, keys: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """(N, 3, H, W) uint8 with channels-last strides, and (N,) int64 labels."""
        if self._size_of is not None:
            self._resize(self._size_of(keys[0][0]))
        indices = torch.tensor([index % len(self._pool) for _, index in keys])
        return self._pool.index_select(0, indices).permute(0, 3, 1, 2), self._labels[indices]

    def _resize(self, size: int) -> None:
        if self._pool.shape[1] != size:
            kept = torch.arange(size) * self._whole.shape[1] // size
            self._pool = self._whole.index_select(1, kept).index_select(2, kept)


class SyntheticBatches:
    """Batches of a sampler straight from the pool: no worker process, since there is nothing to decode."""

    def __init__(self, images: SyntheticImages, batches: Iterable[Sequence[tuple[int, int]]], pin_memory: bool) -> None:
        self._images = images
        self._batches = batches
        self._pin_memory = pin_memory

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for keys in self._batches:
            images, labels = self._images.batch(keys)
            # Pinned, or the copy to the device would hold the host up until it is done.
            yield (images.pin_memory(), labels.pin_memory()) if self._pin_memory else (images, labels)


def build_synthetic(
    size: int,
    num_classes: int,
    image_sizes: tuple[int, int],
    seed: int,
    least: int,
    size_of: Callable[[int], int] | None = None,
) -> tuple[SyntheticImages, SyntheticImages]:
    """Training and validation images; a tenth as many to validate, ``least`` (a batch) at the least."""
    train_size, val_size = image_sizes
    train = SyntheticImages(size, num_classes, train_size, seed, size_of=size_of)
    return train, SyntheticImages(max(size // 10, least), num_classes, val_size, seed, validation=True)

"""Which sample goes to which rank in which step; can start in the middle of an epoch.

The order of an epoch is a permutation from (seed, epoch) alone. Optimizer step k takes the samples
``order[k * G : (k + 1) * G]``, G = batch size x ranks x accumulation, dealt to the ranks in turn
(r, r + W, ...). The whole state is the number of samples consumed.

A key is (draw, sample index); a sample's randomness follows from it and the seed. Without repeats the draw is the
epoch. With R of them (repeated augmentation, arXiv:1902.05509) R copies of a sample stand side by side, so that an
epoch of the same length sees 1 / R of the samples, and copy c of epoch e is draw e * R + c.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

# A batch-norm layer cannot learn from one value a channel: a rank with fewer samples drops the rest.
_LEAST_A_RANK = 2


@dataclass(frozen=True)
class StepPlan:
    """One optimizer step of one rank: ``images`` over all ranks, and the sizes of this rank's batches."""

    images: int
    batch_sizes: tuple[int, ...]


class StepSampler:
    """Batch sampler of one rank: yields lists of (draw, sample index)."""

    def __init__(
        self,
        size: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        accumulation: int = 1,
        seed: int = 0,
        max_steps: int | None = None,
        repeats: int = 1,
    ) -> None:
        self.size = size
        self.batch_size = batch_size
        self.rank = rank
        self.world_size = world_size
        self.accumulation = accumulation
        self.seed = seed
        self.max_steps = max_steps
        self.repeats = repeats
        self.global_batch_size = batch_size * world_size * accumulation
        self.epoch = 0
        self.consumed = 0

    def start(self, epoch: int, consumed: int = 0) -> None:
        """Set where the next iteration begins."""
        self.epoch = epoch
        self.consumed = consumed

    @property
    def dropped(self) -> int:
        """Samples at the end of the epoch that no step takes, since a rank would get fewer than two."""
        return self._end() - self._usable_end() if self.max_steps is None or self._end() == self.size else 0

    def steps_in_epoch(self) -> int:
        """Steps of a whole epoch; 0 where the set is too small for one."""
        return -(-self._usable_end(0) // self.global_batch_size)

    def steps_left(self) -> int:
        """Steps from the present position to the end of the epoch."""
        return max(0, -(-(self._usable_end() - self.consumed) // self.global_batch_size))

    def order(self) -> np.ndarray:
        """All sample indices of the epoch, int64 (size,), the same on every rank."""
        permutation = np.random.Generator(np.random.Philox(key=[self.seed, self.epoch])).permutation(self.size)
        return permutation if self.repeats == 1 else permutation.repeat(self.repeats)[: self.size]

    def plans(self) -> Iterator[StepPlan]:
        """The steps from the present position to the end of the epoch."""
        for start in range(self.consumed, self._usable_end(), self.global_batch_size):
            images = min(self.global_batch_size, self._usable_end() - start)
            share = len(range(self.rank, images, self.world_size))
            yield StepPlan(images, tuple(len(part) for part in self._split(np.arange(share), images)))

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        order, first_draw = self.order(), self.epoch * self.repeats
        for start in range(self.consumed, self._usable_end(), self.global_batch_size):
            places = np.arange(start, min(start + self.global_batch_size, self._usable_end()))
            for part in self._split(places[self.rank :: self.world_size], len(places)):
                yield [(first_draw + int(place) % self.repeats, int(order[place])) for place in part]

    def __len__(self) -> int:
        return sum(len(plan.batch_sizes) for plan in self.plans())

    def _split(self, share: np.ndarray, images: int) -> list[np.ndarray]:
        """A rank's share of a step in even batches, as many on every rank, none of a single sample where avoidable."""
        smallest = images // self.world_size
        largest = -(-images // self.world_size)
        parts = -(-largest // self.batch_size)
        if images < self.global_batch_size:
            parts = max(1, min(parts, smallest // min(_LEAST_A_RANK, self.batch_size)))
        return np.array_split(share, parts)

    def _end(self) -> int:
        return self.size if self.max_steps is None else min(self.size, self.max_steps * self.global_batch_size)

    def _usable_end(self, consumed: int | None = None) -> int:
        start = self.consumed if consumed is None else consumed
        rest = max(0, self._end() - start) % self.global_batch_size
        return self._end() - rest if rest < _LEAST_A_RANK * self.world_size else self._end()


def rank_share(size: int, batch_size: int, rank: int, world_size: int) -> list[list[tuple[int, int]]]:
    """Validation: every sample exactly once over all ranks, no padding; batches of (0, index)."""
    indices = range(rank, size, world_size)
    return [
        [(0, index) for index in indices[start : start + batch_size]] for start in range(0, len(indices), batch_size)
    ]

"""The training loader alone: batches on the host as fast as they come, nothing done with them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from data.build import LoaderOptions, plan_loading
from data.collate import BadImage
from data.dataset import ImageDataset
from data.facts import FileFacts, jpeg_decoder, look_at_files
from data.loaders import HostBatches, OnBad
from data.sampler import StepSampler


class EndlessSampler:
    """The batches of epoch 0, 1, ... in one row: workers never run dry at the end of an epoch."""

    def __init__(self, sampler: StepSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for epoch in itertools.count():
            self._sampler.start(epoch)
            yield from self._sampler


class TooFewImages(ValueError):
    """A set of which not one batch can be made."""


@dataclass(frozen=True)
class LoaderSpeed:
    """``images`` in ``seconds``, both of ``batches`` after the warm-up ones; ``left_out``: unreadable files met."""

    images: int
    seconds: float
    batches: int
    warmup_batches: int
    batch_size: int
    image_size: int
    workers: int
    left_out: int
    files: FileFacts
    decoder: str

    @property
    def images_per_sec(self) -> float:
        return self.images / max(self.seconds, 1e-9)

    @property
    def images_per_sec_per_worker(self) -> float:
        """Of the process itself where there is no worker."""
        return self.images_per_sec / max(1, self.workers)

    def as_json(self, **more: Any) -> dict[str, Any]:
        """Plain types; ``more`` is added."""
        speeds = {"images_per_sec": self.images_per_sec, "images_per_sec_per_worker": self.images_per_sec_per_worker}
        return {**speeds, **asdict(self), **more}

    def as_lines(self) -> list[str]:
        who = f"per worker ({self.workers} workers)" if self.workers else "in the process itself (-j 0)"
        left_out = f"; {self.left_out} unreadable files left out" if self.left_out else ""
        return [
            f"loader alone: {self.images_per_sec:.1f} images/s in total, {self.images_per_sec_per_worker:.1f} {who}",
            f"{self.images} images in {self.seconds:.1f} s: {self.batches} batches of {self.batch_size} at "
            f"{self.image_size} pixels, after {self.warmup_batches} that were not timed{left_out}",
            f"files: {self.files.describe()}; JPEG by {self.decoder}",
        ]


def measure_loader(
    train_set: ImageDataset, image_size: int, options: LoaderOptions, device: str, batches: int, on_bad: OnBad
) -> LoaderSpeed:
    """Time ``batches`` batches of one process's training loader; ``device``: the type that training would have.

    Raises TooFewImages, and what ``on_bad`` raises.
    """
    left_out: set[str] = set()

    def note(split: str, bad: Sequence[BadImage]) -> None:
        on_bad(split, bad)
        left_out.update(item.name for item in bad)

    sampler, host = plan_loading(len(train_set), options, (0, 1), device, note)
    if not sampler.steps_in_epoch():
        found = "1 training image is" if len(train_set) == 1 else f"{len(train_set)} training images are"
        raise TooFewImages(f"{found} too few for a batch: a step needs two")
    # Twice the workers are on their way when the first batch arrives: loaded while the workers started.
    warmup = max(1, 2 * options.workers)
    images, start = 0, 0.0
    loaded = HostBatches("train", train_set, EndlessSampler(sampler), host)
    for number, (_, target) in enumerate(loaded):
        if number >= warmup:
            images += len(target)
        else:
            start = time.perf_counter()
        if number + 1 == warmup + batches:
            break
    seconds = time.perf_counter() - start
    facts = look_at_files(train_set.index), jpeg_decoder()
    return LoaderSpeed(
        images, seconds, batches, warmup, options.batch_size, image_size, options.workers, len(left_out), *facts
    )

"""Look at every file before a training does: what cannot be read, how many a class, what stands in both splits.

``headers`` reads each file and parses its header; a file whose format has an end mark that is missing is decoded as
well, so that a cut-off JPEG, PNG or WebP is found and one that merely lacks the mark is not. ``full`` decodes all.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from data.collate import BadImage
from data.dataset import UNREADABLE, reason_of
from data.decode import Decoder
from data.facts import format_of
from data.index import SampleIndex
from data.loaders import HostOptions, worker_batches
from data.patience import read_patiently

_FILES_A_TASK = 16


@dataclass(frozen=True)
class CheckOptions:
    """``check_data``: headers or full; the others as in training."""

    check_data: str
    workers: int
    exif_orientation: str
    max_image_pixels: int | None


class Bar(Protocol):
    """A progress bar; trainer's console has one."""

    def start_bar(self, title: str, total: int, done: int = 0, unit: str = "step") -> None: ...
    def advance(self, count: int = 1) -> None: ...
    def end_bar(self) -> None: ...


@dataclass
class SplitReport:
    """One split. ``classes``: images of each; ``sides``: smallest and largest width and height."""

    described: str
    images: int
    classes: dict[str, int]
    bad: list[BadImage] = field(default_factory=list)
    formats: Counter[str] = field(default_factory=Counter)
    total_bytes: int = 0
    sides: tuple[int, int, int, int] | None = None

    @property
    def readable(self) -> int:
        return self.images - len(self.bad)


@dataclass
class DataReport:
    """``findings``: what is wrong beside single files. Twins: what val shares with train, as (val, train) names."""

    how: str
    splits: dict[str, SplitReport]
    findings: list[str]
    same_names: list[tuple[str, str]] = field(default_factory=list)
    same_contents: list[tuple[str, str]] = field(default_factory=list)

    @property
    def bad(self) -> list[tuple[str, BadImage]]:
        return [(name, bad) for name, split in self.splits.items() for bad in split.bad]

    @property
    def ok(self) -> bool:
        return not self.findings and not self.bad


class Seen(NamedTuple):
    """One file; ``reason``: why it cannot be read, None where it can; ``digest``: of its bytes, 64 bits."""

    number: int
    reason: str | None
    width: int
    height: int
    size: int
    digest: int
    format: str


class Looker:
    """Sample numbers -> what was seen. Travels to the worker processes."""

    def __init__(self, index: SampleIndex, decoder: Decoder, full: bool) -> None:
        self._index = index
        self._decoder = decoder
        self._full = full

    def __getitems__(self, numbers: Sequence[int]) -> list[Seen]:
        return [self._look(number) for number in numbers]

    def _look(self, number: int) -> Seen:
        data = b""
        try:
            data = read_patiently(self._index, number)
            image = self._decoder(data)
            if self._full or lacks_its_end(data):
                image.decode()
        except UNREADABLE as error:
            return Seen(number, reason_of(error), 0, 0, len(data), 0, format_of(data))
        digest = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
        return Seen(number, None, image.width, image.height, len(data), digest, format_of(data))


def lacks_its_end(data: bytes) -> bool:
    """Whether the mark that ends a JPEG, PNG or WebP file is missing. Bytes after the mark are common."""
    if data.startswith(b"\xff\xd8"):
        return data.find(b"\xff\xd9", _scan_start(data)) < 0
    if data.startswith(b"\x89PNG"):
        return b"IEND" not in data[-(1 << 16) :]
    return data.startswith(b"RIFF") and int.from_bytes(data[4:8], "little") + 8 > len(data)


def _scan_start(data: bytes) -> int:
    """Where a JPEG's compressed data begin: behind all headers, in which a thumbnail with an end of its own may lie."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        at += 1 if data[at + 1] == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return at


def check_indexes(
    indexes: Mapping[str, SampleIndex], options: CheckOptions, findings: Sequence[str] = (), bar: Bar | None = None
) -> DataReport:
    """Check every sample of the splits; ``findings`` are those about their folders."""
    report = DataReport(options.check_data, {}, list(findings))
    digests: dict[str, np.ndarray] = {}
    for split, index in indexes.items():
        report.splits[split], digests[split] = _check_split(split, index, options, bar)
    if "train" in indexes and "val" in indexes:
        train, val = indexes["train"], indexes["val"]
        report.same_names = _same_names(train, val)
        pairs = _same_contents(digests["train"], digests["val"])
        report.same_contents = [(val.name(mine), train.name(theirs)) for mine, theirs in pairs]
    return report


def _check_split(
    split: str, index: SampleIndex, options: CheckOptions, bar: Bar | None
) -> tuple[SplitReport, np.ndarray]:
    counts = np.bincount(index.labels, minlength=len(index.classes)).tolist()
    report = SplitReport(index.describe(), len(index), dict(zip(index.classes, counts, strict=True)))
    digests = np.zeros(len(index), dtype=np.uint64)
    decoder = Decoder(options.exif_orientation == "apply", options.max_image_pixels)
    looker = Looker(index, decoder, options.check_data == "full")
    tasks = [range(start, min(start + _FILES_A_TASK, len(index))) for start in range(0, len(index), _FILES_A_TASK)]
    if not tasks:
        return report, digests
    if bar is not None:
        bar.start_bar(split, len(index), unit="file")
    try:
        for seen in worker_batches(looker, tasks, HostOptions(options.workers)):
            for file in seen:
                _count(report, index, file)
                digests[file.number] = file.digest
            if bar is not None:
                bar.advance(len(seen))
    finally:
        if bar is not None:
            bar.end_bar()
    return report, digests


def _count(report: SplitReport, index: SampleIndex, file: Seen) -> None:
    if file.reason is not None:
        class_name = index.classes[index.labels[file.number]]
        report.bad.append(BadImage(file.number, index.name(file.number), class_name, file.reason))
        return
    report.formats[file.format] += 1
    report.total_bytes += file.size
    low_width, high_width, low_height, high_height = report.sides or (file.width, 0, file.height, 0)
    report.sides = (
        min(low_width, file.width),
        max(high_width, file.width),
        min(low_height, file.height),
        max(high_height, file.height),
    )


def _same_names(train: SampleIndex, val: SampleIndex) -> list[tuple[str, str]]:
    """Files of val whose bare name a file of train has too."""
    twins: dict[str, str | None] = dict.fromkeys(_bare(val.name(number)) for number in range(len(val)))
    for number in range(len(train)):
        name = train.name(number)
        bare = _bare(name)
        if bare in twins and twins[bare] is None:
            twins[bare] = name
    pairs = ((name, twins[_bare(name)]) for name in map(val.name, range(len(val))))
    return [(mine, theirs) for mine, theirs in pairs if theirs is not None]


def _bare(name: str) -> str:
    return os.path.basename(name.rpartition(".tar!")[2])


def _same_contents(train: np.ndarray, val: np.ndarray) -> list[tuple[int, int]]:
    """(number in val, number in train) of equal digests; 0 stands for a file that could not be read."""
    if not len(train):
        return []
    order = np.argsort(train, kind="stable")
    places = np.minimum(np.searchsorted(train, val, sorter=order), len(train) - 1)
    twins = order[places]
    return [(mine, int(twins[mine])) for mine in np.flatnonzero((train[twins] == val) & (val != 0)).tolist()]

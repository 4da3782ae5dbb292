"""What a run does about images that cannot be read: end, or go on without them, alike on every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from trainer.distributed import Group
from trainer.errors import BadDataError

FILE = "bad_images.txt"
LEAST_LIMIT, LIMIT_SHARE = 10, 0.01


class Unreadable(Protocol):
    """A sample that could not be read, as the loaders name it."""

    @property
    def name(self) -> str: ...
    @property
    def class_name(self) -> str: ...
    @property
    def reason(self) -> str: ...


class BadImages:
    """``policy`` fail or skip; ``limit``: files a split, a share such as "2%", or None for the larger of
    10 and 1 %; ``sizes``: images of each split."""

    def __init__(self, group: Group, policy: str, limit: int | str | None, sizes: Mapping[str, int]) -> None:
        self.skips = policy == "skip"
        self.folder: Path | None = None  # where rank 0 keeps the names; a run without one keeps none
        self._group = group
        self._sizes = dict(sizes)
        self._limits = {split: allowed(limit, size) for split, size in sizes.items()}
        self._new: dict[str, dict[str, str]] = {split: {} for split in sizes}
        self._known: dict[str, dict[str, str]] = {split: {} for split in sizes}
        self._told = 0
        if self.skips:
            group.open_host_group()

    def found(self, split: str, bad: Sequence[Unreadable]) -> None:
        """Unreadable samples of a batch of this rank. Raises BadDataError under fail."""
        for item in bad:
            if not self.skips:
                raise BadDataError(
                    f"cannot read {item.name} (class {item.class_name}): {item.reason}; "
                    "--bad-images skip goes on without such files, --check-data lists them all"
                )
            if item.name not in self._known[split]:
                self._new[split][item.name] = f"{item.class_name}\t{item.reason}"

    def settle(self, split: str, readable: int) -> int:
        """``readable`` summed over ranks, once all of them know all bad files. Every rank calls this in the
        same order; raises BadDataError on every rank where there are more than allowed."""
        if not self.skips:
            return readable
        new = self._new[split]
        total, fresh = self._group.sum_on_host([readable, len(new)])
        if fresh:
            for names in self._group.gather(new):
                self._known[split].update(names)
            new.clear()
            self._write()
            self._check(split)
        return total

    def news(self) -> str | None:
        """A line where files were found since the last call."""
        count = sum(map(len, self._known.values()))
        if count == self._told:
            return None
        self._told = count
        found = ", ".join(
            f"{len(names)} of {self._sizes[split]} {split} images" for split, names in self._known.items() if names
        )
        return f"{found} cannot be read and were left out: names and reasons in {FILE}"

    def _check(self, split: str) -> None:
        names = self._known[split]
        if len(names) > self._limits[split]:
            name, rest = list(names.items())[-1]
            raise BadDataError(
                f"{len(names)} bad images in {split}, more than the {self._limits[split]} that --max-bad-images allows; "
                f"the last is {name} ({': '.join(rest.split(chr(9)))})",
                on_every_rank=True,
            )

    def _write(self) -> None:
        """Add what is not there yet; a resumed run finds its earlier lines again."""
        if self.folder is None or not self._group.is_main:
            return
        path = self.folder / FILE
        there = set(path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()) if path.exists() else set()
        lines = [f"{split}\t{name}\t{rest}" for split, names in self._known.items() for name, rest in names.items()]
        with open(path, "a", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(f"{line}\n" for line in lines if line not in there)


def allowed(limit: int | str | None, size: int) -> int:
    """How many bad files a split of ``size`` may have."""
    if limit is None:
        return max(LEAST_LIMIT, math.floor(LIMIT_SHARE * size))
    if isinstance(limit, str):
        return math.floor(float(limit.rstrip("%")) / 100 * size)
    return limit

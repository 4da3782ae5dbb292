"""What a run does about images that cannot be read: end, or go on without them, alike on every rank."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from trainer.append_file import AppendFile
from trainer.distributed import Group
from trainer.errors import BadDataError
from trainer.one_line import printable

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
        self._folder: Path | None = None
        self._file: AppendFile | None = None
        self._group = group
        self._sizes = dict(sizes)
        self._limits = {split: allowed(limit, size) for split, size in sizes.items()}
        self._new: dict[str, dict[str, str]] = {split: {} for split in sizes}
        self._known: dict[str, dict[str, str]] = {split: {} for split in sizes}
        self._told = 0
        if self.skips:
            group.open_host_group()

    def keep_in(self, folder: Path | None) -> None:
        """``folder``: of the run, on rank 0. What an earlier start of the run found counts on; every rank calls this."""
        if not self.skips:
            return
        self._folder = folder
        self._file = AppendFile(folder / FILE) if folder is not None else None
        for split, name, class_name, reason in self._group.on_main(self._read):
            if split in self._known:
                self._known[split][name] = f"{class_name}\t{reason}"

    def found(self, split: str, bad: Sequence[Unreadable]) -> None:
        """Unreadable samples of a batch of this rank. Raises BadDataError under fail."""
        for item in bad:
            if not self.skips:
                raise BadDataError(
                    f"cannot read {printable(item.name)} (class {printable(item.class_name)}): {item.reason}; "
                    "--bad-images skip goes on without such files, --check-data lists them all"
                )
            if item.name not in self._known[split]:
                self._new[split][item.name] = f"{_one_line(item.class_name)}\t{_one_line(item.reason)}"

    def settle(self, split: str, readable: int) -> int:
        """``readable`` summed over ranks, once all of them know all bad files. Every rank calls this in the
        same order; raises BadDataError on every rank where there are more than allowed."""
        if not self.skips:
            return readable
        new = self._new[split]
        total, fresh = self._group.sum_on_host([readable, len(new)])
        if fresh:
            known = self._known[split]
            found = {name: rest for names in self._group.gather(new) for name, rest in names.items()}
            self._write([f"{split}\t{_one_line(name)}\t{rest}" for name, rest in found.items() if name not in known])
            known.update(found)
            new.clear()
            self._check(split)
        return total

    def news(self) -> str | None:
        """A line where files were found since the last call."""
        if self._file is not None:
            self._file.append("")  # what a full disk did not take
        count = sum(map(len, self._known.values()))
        if count == self._told:
            return None
        self._told = count
        found = ", ".join(
            f"{len(names)} of {self._sizes[split]} {split} images" for split, names in self._known.items() if names
        )
        return f"{found} cannot be read and were left out: names and reasons in {FILE}"

    def refuse_none(self, split: str, images: int) -> None:
        """``images``: those of a whole pass over ``split``, the same on every rank. Raises BadDataError on every
        rank where bad ones left none, whatever the limit."""
        if images == 0 and self._known[split]:
            count = f"{len(self._known[split])} of {self._sizes[split]}"
            raise BadDataError(
                f"no image of {split} is left, {count} cannot be read; {self._last(split)}: mend or replace them, "
                "--check-data lists them all",
                on_every_rank=True,
            )

    def _check(self, split: str) -> None:
        count = len(self._known[split])
        if count > self._limits[split]:
            raise BadDataError(
                f"{count} bad images in {split}, more than the {self._limits[split]} that --max-bad-images allows; "
                f"{self._last(split)}",
                on_every_rank=True,
            )

    def _last(self, split: str) -> str:
        name, rest = list(self._known[split].items())[-1]
        return f"the last is {printable(name)} ({': '.join(rest.split(chr(9)))})"

    def _write(self, lines: list[str]) -> None:
        if self._file is not None:
            self._file.append("".join(f"{line}\n" for line in lines))

    def _read(self) -> list[list[str]]:
        """The lines an earlier start left: split, name, class, reason."""
        if self._folder is None or not (self._folder / FILE).exists():
            return []
        text = (self._folder / FILE).read_text(encoding="utf-8", errors="surrogateescape")
        rows = [[_as_it_was(cell) for cell in line.split("\t")] for line in text.split("\n")]
        return [row for row in rows if len(row) == 4]


def _one_line(text: str) -> str:
    """Names may hold what ends a line or a column."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace("\r", r"\r").replace("\t", r"\t")


def _as_it_was(text: str) -> str:
    marks = {"n": "\n", "r": "\r", "t": "\t"}
    return re.sub(r"\\(.)", lambda match: marks.get(match[1], match[1]), text)


def allowed(limit: int | str | None, size: int) -> int:
    """How many bad files a split of ``size`` may have."""
    if limit is None:
        return max(LEAST_LIMIT, math.floor(LIMIT_SHARE * size))
    if isinstance(limit, str):
        return math.floor(float(limit.rstrip("%")) / 100 * size)
    return limit

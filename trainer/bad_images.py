"""What a run does about images that cannot be read: end, or go on without them, alike on every rank."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from fractions import Fraction
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
    10 and 1 %; ``sizes``: images of each split; ``still_bad``: for a split, those of some names that cannot be read
    now (without it, all of them)."""

    def __init__(
        self,
        group: Group,
        policy: str,
        limit: int | str | None,
        sizes: Mapping[str, int],
        still_bad: Mapping[str, Callable[[Set[str]], Set[str]]] | None = None,
    ) -> None:
        self.skips = policy == "skip"
        self._folder: Path | None = None
        self._file: AppendFile | None = None
        self._group = group
        self._sizes = dict(sizes)
        self._limits = {split: allowed(limit, size) for split, size in sizes.items()}
        self._new: dict[str, dict[str, str]] = {split: {} for split in sizes}
        self._known: dict[str, dict[str, str]] = {split: {} for split in sizes}
        self._still_bad = still_bad or {}
        self._recorded: set[tuple[str, str]] = set()  # split and name of every line in the file
        self._told = 0
        if self.skips:
            group.open_host_group()

    def keep_in(self, folder: Path | None) -> None:
        """``folder``: of the run, on rank 0. What an earlier start of the run found and nobody has mended counts on;
        every rank calls this, and it raises BadDataError on every rank where that is more than allowed."""
        if not self.skips:
            return
        self._folder = folder
        self._file = AppendFile(folder / FILE) if folder is not None else None
        for split, name, class_name, reason, bad in self._group.on_main(self._read):
            self._recorded.add((split, name))
            if bad:
                self._known[split][name] = f"{class_name}\t{reason}"
        self._told = sum(map(len, self._known.values()))
        for split in self._known:
            self._check(split)

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
            written = {name: rest for name, rest in found.items() if (split, name) not in self._recorded}
            self._write([f"{split}\t{_one_line(name)}\t{rest}" for name, rest in written.items()])
            self._recorded.update((split, name) for name in written)
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

    def _read(self) -> list[tuple[str, str, str, str, bool]]:
        """The lines an earlier start left: split, name, class, reason, and whether it is bad still."""
        if self._folder is None or not (self._folder / FILE).exists():
            return []
        text = (self._folder / FILE).read_text(encoding="utf-8", errors="surrogateescape")
        rows = [[_as_it_was(cell) for cell in line.split("\t")] for line in text.split("\n")]
        rows = [row for row in rows if len(row) == 4 and row[0] in self._known]
        bad = set()
        for split in self._known:
            names = {name for of, name, *_ in rows if of == split}
            look = self._still_bad.get(split)
            bad |= {(split, name) for name in (look(names) if look and names else names)}
        return [(split, name, label, reason, (split, name) in bad) for split, name, label, reason in rows]


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
        return math.floor(Fraction(limit.rstrip("%")) * size / 100)  # as written: 29 % of 100 are 29
    return limit

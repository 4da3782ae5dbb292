"""Samples of an index, decoded and transformed a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from torch.utils.data import Dataset

from data import decode
from data.collate import BadImage, HostBatch, as_batch, new_rows
from data.decode import DecodeError, Decoder
from data.index import SampleIndex
from data.patience import read_patiently
from data.transforms import Transform

Key = tuple[int, int]  # draw, sample index
UNREADABLE = (OSError, DecodeError, MemoryError)  # what is wrong with one sample, not with the program


class ImageDataset(Dataset):  # type: ignore[type-arg]
    """A batch of keys -> a HostBatch. An unreadable sample is no error here: the batch names it.

    ``size_of``: from a draw to pixels a side, where that is not always the transform's.
    """

    def __init__(
        self,
        index: SampleIndex,
        decoder: Decoder,
        transform: Transform,
        size_of: Callable[[int], int] | None = None,
    ) -> None:
        self.index = index
        self._decoder = decoder
        self._transform = transform
        self._size_of = size_of
        self.classes = list(index.classes)

    def __len__(self) -> int:
        return len(self.index)

    def describe(self) -> str:
        return self.index.describe()

    def describe_decoder(self) -> str:
        return decode.describe()

    def __getitems__(self, keys: Sequence[Key]) -> HostBatch:
        rows = new_rows(len(keys), self._transform.size if self._size_of is None else self._size_of(keys[0][0]))
        labels: list[int] = []
        bad: list[BadImage] = []
        for draw, index in keys:
            label = int(self.index.labels[index])
            try:
                image = self._decoder(read_patiently(self.index, index))
                self._transform(image, draw, index, rows[len(labels)])
            except UNREADABLE as error:
                bad.append(BadImage(index, self.index.name(index), self.index.classes[label], reason_of(error)))
            else:
                labels.append(label)
        return as_batch(rows, labels, bad)

    def still_bad(self, names: Set[str]) -> set[str]:
        """Those of ``names`` that are samples of this set and cannot be read now."""
        found = set()
        for index in range(len(self.index)):
            name = self.index.name(index)
            if name in names:
                try:
                    self._decoder(read_patiently(self.index, index)).decode()
                except UNREADABLE:
                    found.add(name)
        return found

    def __getitem__(self, key: Key) -> HostBatch:
        return self.__getitems__([key])


def reason_of(error: Exception) -> str:
    """Why a sample could not be read, on one line."""
    if isinstance(error, MemoryError):
        return "needs more memory than there is"
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())

"""A failure of disk or network is tried again; one of the file is not."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from data import patience
from data.shard_files import RemoteError


class Failing:
    """Fails with each error in turn, then gives the bytes."""

    def __init__(self, *errors: OSError) -> None:
        self.errors = list(errors)
        self.reads = 0

    def read(self, number: int) -> bytes:
        self.reads += 1
        if self.errors:
            raise self.errors.pop(0)
        return b"bytes"


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr("data.patience.time.sleep", slept.append)
    return slept


def remote(cause: Exception) -> OSError:
    error = RemoteError("cannot read s3://bucket/a.tar")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error", [OSError(errno.ESTALE, "stale"), OSError(errno.EIO, "input"), remote(ValueError("503"))], ids=str
)
def test_what_may_pass_is_tried_again(error: OSError, pauses: list[float]) -> None:
    index: Any = Failing(error, error)
    assert patience.read_patiently(index, 0) == b"bytes"
    assert pauses == list(patience.PAUSES)


def test_what_does_not_pass_is_the_readers_to_hear() -> None:
    index: Any = Failing(*[OSError(errno.EIO, "input")] * 5)
    with pytest.raises(OSError, match="input"):
        patience.read_patiently(index, 0)
    assert index.reads == 3


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(errno.ENOENT, "none"), IsADirectoryError(errno.EISDIR, "dir"), remote(FileNotFoundError())],
)
def test_what_is_the_files_own_is_not(error: OSError, pauses: list[float]) -> None:
    index: Any = Failing(error)
    with pytest.raises(OSError):
        patience.read_patiently(index, 0)
    assert (index.reads, pauses) == (1, [])

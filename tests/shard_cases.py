"""Small tar files, and what is asked of the index made of them."""

from __future__ import annotations

import io
import multiprocessing
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from data import shards
from data.folder import FolderError
from data.shards import ShardIndex, open_shards

Member = tuple[str, bytes]
TWO: list[Member] = [("a/1.jpg", b"a1"), ("b/1.jpg", b"b1")]


def listings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards whose headers are read from here on."""
    seen: list[str] = []
    real = shards.read_table
    monkeypatch.setattr(shards, "read_table", lambda file, url, size: seen.append(url) or real(file, url, size))
    return seen


def tar_bytes(members: Sequence[Member | tarfile.TarInfo], form: int = tarfile.GNU_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            tar.addfile(info, io.BytesIO(member[1]))
    return file.getvalue()


def write_tar(path: Path, members: Sequence[Member | tarfile.TarInfo], form: int = tarfile.GNU_FORMAT) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members, form))
    return str(path)


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def content(index: ShardIndex) -> list[tuple[str, str, bytes]]:
    """Class, member and bytes of every sample, in order."""
    rows = range(len(index))
    return [(index.classes[index.labels[i]], index.name(i).split("!")[1], index.read(i)) for i in rows]


def refused(train: str, val: str | None = None) -> str:
    with pytest.raises(FolderError) as caught:
        open_shards(train, val if val is not None else train)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def in_children(index: ShardIndex, orders: list[list[int]]) -> list[list[bytes]]:
    """What forked processes read, each in an order of its own, all at once."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(len(orders))

    def child(order: list[int], pipe: Any) -> None:
        start.wait(30)
        pipe.send([index.read(i) for i in order])

    pipes = [context.Pipe(duplex=False) for _ in orders]
    children = [context.Process(target=child, args=(order, pipe[1])) for order, pipe in zip(orders, pipes, strict=True)]
    for process in children:
        process.start()
    for _, sender in pipes:
        sender.close()
    found = [receiver.recv() for receiver, _ in pipes]
    for process in children:
        process.join(30)
    return found

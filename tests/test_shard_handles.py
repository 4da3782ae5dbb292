"""After a fork a process reads tar files through handles of its own."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data import shard_files
from data.shard_files import ShardReader


def in_a_child(function: Callable[[], Any]) -> Any:
    """What ``function`` returns in a forked process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(function()))
    child.start()
    sender.close()
    try:
        assert receiver.poll(30), "the child does not answer"
        return receiver.recv()
    finally:
        child.kill()
        child.join(30)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Which process has opened which file."""
    found: list[tuple[int, str]] = []
    inner = shard_files._LocalFile.__init__

    def watched(self: Any, path: str) -> None:
        found.append((os.getpid(), path))
        inner(self, path)

    monkeypatch.setattr(shard_files._LocalFile, "__init__", watched)
    return found


@pytest.fixture
def reader(tmp_path: Path) -> ShardReader:
    (tmp_path / "0.tar").write_bytes(b"0123456789")
    return ShardReader([str(tmp_path / "0.tar")])


def test_a_forked_process_opens_its_own_files(reader: ShardReader, opened: list[tuple[int, str]]):
    """Once, and leaves those of its parent open."""
    assert reader.read(0, 2, 3) == b"234"
    assert opened == [(os.getpid(), reader.urls[0])]

    def child() -> tuple[list[bytes], list[tuple[int, str]], int, int]:
        data = [reader.read(0, 4, 2), reader.read(0, 6, 2)]
        return data, opened[1:], reader._opened.process, os.getpid()

    data, there, process, pid = in_a_child(child)
    assert data == [b"45", b"67"]
    assert pid != os.getpid()
    assert there == [(pid, reader.urls[0])]
    assert process == pid
    assert reader.read(0, 0, 2) == b"01"
    assert len(opened) == 1, "what the parent had open must have stayed open"


def test_a_lock_held_while_forking_does_not_stop_the_child(reader: ShardReader):
    """Another thread of the parent may be reading."""
    reader.read(0, 0, 1)
    with reader._opened.lock:
        assert in_a_child(lambda: reader.read(0, 4, 2)) == b"45"


def test_a_forked_process_connects_anew(monkeypatch: pytest.MonkeyPatch):
    """Where each range is asked for over a connection."""

    class Remote:
        def __init__(self) -> None:
            self.process = os.getpid()

        def cat_file(self, path: str, start: int, end: int) -> bytes:
            return b"%d" % self.process

    monkeypatch.setattr(shard_files, "connect", lambda url: (Remote(), url))
    reader, size = ShardReader(["far://bucket/0.tar"]), len(str(os.getpid()))
    assert reader.read(0, 0, size) == b"%d" % os.getpid()

    def child() -> tuple[int, bytes]:
        text = b"%d" % os.getpid()
        return os.getpid(), reader.read(0, 0, len(text))

    pid, text = in_a_child(child)
    assert text == b"%d" % pid
    assert reader.read(0, 0, size) == b"%d" % os.getpid()

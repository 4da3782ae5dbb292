"""Tar files by path or URL: what marks their content, and bytes out of them."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

from data.addresses import is_url, shown, shown_error
from data.cache_files import is_settled
from data.folder import FolderError

MOST_OPEN = 16  # local files a process holds open
_NO_RANGES = "its server must answer range requests; use one that does, or copy the tar files to a disk"
# What file systems call the mark that changes with a file's content.
_MARKS = (
    "etag",
    "md5hash",
    "md5",
    "crc32c",
    "generation",
    "mtime",
    "lastmodified",
    "last_modified",
    "updated",
    "created",
)


def connect(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL and the path in it. Raises FolderError where no driver is installed."""
    try:
        import fsspec

        return cast("tuple[Any, str]", fsspec.core.url_to_fs(url))
    except Exception as error:
        raise FolderError(
            f"cannot open {shown(url)} ({shown_error(error)}): install the driver, or correct the address"
        ) from error


def size_and_mark(url: str) -> tuple[int, str]:
    """A shard's bytes and a text that changes with its content; "" where the file system has none, or none to go by.

    Raises FolderError where it cannot be asked.
    """
    try:
        if not is_url(url):
            status = os.stat(url)
            times = status.st_mtime_ns, status.st_ctime_ns
            # One that has just changed may change again and show the same times.
            mark = "/".join(map(str, (*times, status.st_ino))) if is_settled(max(times)) else ""
            return status.st_size, mark
        fs, path = connect(url)
        info = {str(key).lower(): value for key, value in fs.info(path).items()}
    except FolderError:
        raise
    except Exception as error:
        raise FolderError(
            f"cannot open {shown(url)} ({shown_error(error)}): check address, access and network"
        ) from error
    if not isinstance(info.get("size"), int):
        raise FolderError(
            f"{shown(url)} has no known size, so it cannot be read at random: copy it to a place that tells sizes"
        )
    return int(info["size"]), next((f"{key}={info[key]}" for key in _MARKS if info.get(key)), "")


def open_shard(url: str, size: int) -> BinaryIO:
    """The whole shard of ``size`` bytes as a seekable file.

    Raises FolderError for a server that gives whole files only, OSError and what drivers raise.
    """
    if not is_url(url):
        return open(url, "rb")
    fs, path = connect(url)
    file = cast(BinaryIO, fs.open(path, "rb"))
    try:
        if size > 1:
            file.seek(size - 1)
            file.read(1)
            file.seek(0)
    except ValueError as error:  # what fsspec raises for an HTTP server without ranges
        file.close()
        raise FolderError(f"cannot read parts of {shown(url)} ({shown_error(error)}): {_NO_RANGES}") from error
    return file


class _LocalFile:
    """A file descriptor that closes itself when nobody uses it any more."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, offset: int, size: int) -> bytes:
        parts = []
        while size and (part := os.pread(self._descriptor, size, offset)):  # one call gives 2 GiB at the most
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return b"".join(parts)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


class _Opened:
    """What one process has open."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.local: OrderedDict[str, _LocalFile] = OrderedDict()
        self.remote: dict[str, tuple[Any, str]] = {}

    def read(self, url: str, offset: int, size: int) -> bytes:
        if is_url(url):
            if url not in self.remote:
                self.remote[url] = connect(url)
            fs, path = self.remote[url]
            return cast(bytes, fs.cat_file(path, start=offset, end=offset + size))
        with self.lock:
            file = self.local.pop(url, None) or _LocalFile(url)
            self.local[url] = file
            while len(self.local) > MOST_OPEN:
                self.local.popitem(last=False)
        return file.read(offset, size)


class RemoteError(OSError):
    """What the driver of an address says, without the passwords in it; its cause is the driver's own error."""


class ShardReader:
    """Bytes out of shards by number and offset; safe in forked processes and in threads.

    Local files are opened when first read and read with ``pread``, which leaves no position that processes could share;
    remote ones are asked for one range a read. A pickle holds the names alone.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = tuple(urls)
        self._opened = _Opened()

    def __reduce__(self) -> tuple[type[ShardReader], tuple[tuple[str, ...]]]:
        return type(self), (self.urls,)

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """``size`` bytes of shard number ``shard`` from byte ``offset`` on. Raises OSError, also for fewer bytes."""
        url = self.urls[shard]
        # After a fork: connections, and a lock that another thread may have held, belong to the parent.
        if self._opened.process != os.getpid():
            self._opened = _Opened()
        try:
            data = self._opened.read(url, offset, size) if size else b""
        except Exception as error:  # each driver has errors of its own, with addresses in them; readers expect OSError
            if not is_url(url):
                raise
            raise RemoteError(f"cannot read {shown(url)} ({shown_error(error)})") from error
        if len(data) > size:
            raise OSError(f"{shown(url)} gave {len(data)} bytes where {size} were asked for: {_NO_RANGES}")
        if len(data) != size:
            raise OSError(
                f"{shown(url)} gave {len(data)} of {size} bytes at {offset}: it has changed since it was listed"
            )
        return data

"""One tar file -> where its images lie. Only the headers are read, and the ``.cls`` files beside the images."""

from __future__ import annotations

import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from data.folder import SUFFIXES, FolderError
from data.index import Names

_BLOCK = tarfile.BLOCKSIZE
_TAIL = 1 << 20  # so much after the end mark is looked at for a second archive
_LONGEST_CLS = 1024
_PACKED = {
    b"\x1f\x8b": "gunzip",
    b"BZh": "bunzip2",
    b"\xfd7zXZ\x00": "unxz",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"\x04\x22\x4d\x18": "unlz4",
}


@dataclass(frozen=True)
class TarTable:
    """The images of one tar file, in its order.

    ``offsets`` and ``sizes``: (N,) int64, bytes; ``labels``: (N,) int32, indices into ``classes``, which holds only
    classes that have images. ``from_cls``: the classes are the content of ``.cls`` members instead of folders.
    """

    names: Names
    offsets: np.ndarray
    sizes: np.ndarray
    classes: tuple[str, ...]
    labels: np.ndarray
    from_cls: bool
    ignored: dict[str, int]

    def __len__(self) -> int:
        return len(self.names)


def read_table(file: BinaryIO, shard: str, size: int) -> TarTable:
    """List the images of an open, seekable tar file of ``size`` bytes; ``shard`` is its name for messages.

    Raises FolderError for what is no plain tar, is damaged or cut off, or holds members that could point outside;
    OSError where it cannot be read.
    """
    file.seek(0)
    start = file.read(8)
    for magic, command in _PACKED.items():
        if start.startswith(magic):
            raise FolderError(
                f"{shard} is compressed, and single images cannot be read out of a compressed tar: unpack it with {command}"
            )
    images: dict[str, tuple[int, int]] = {}
    sidecars: dict[str, str] = {}
    ignored: Counter[str] = Counter()
    for member in _members(file, shard, size):
        name = _checked_name(member, shard)
        if member.isdir():
            continue
        suffix = os.path.splitext(name)[1].lower()
        if any(part.startswith(".") or part == "__MACOSX" for part in name.split("/")):
            ignored["hidden"] += 1
        elif name in images or (suffix == ".cls" and name[:-4] in sidecars):
            raise FolderError(f"{shard} holds {name} twice: which one counts is unclear, write the file anew")
        elif suffix == ".cls":
            sidecars[name[:-4]] = _read_class(file, member, shard)
        elif suffix in SUFFIXES:
            images[name] = (member.offset_data, member.size)
        else:
            ignored[suffix or "no suffix"] += 1
    classes = _from_sidecars(images, sidecars, shard, ignored) if sidecars else _from_folders(images, ignored)
    return _table(images, classes, bool(sidecars), ignored)


def _members(file: BinaryIO, shard: str, size: int) -> Iterator[tarfile.TarInfo]:
    """The members of a tar file, which must go on to its end mark."""
    file.seek(0)
    damaged = f"{shard} is damaged, cut off or no tar file"
    try:
        # Names that are not UTF-8 keep their bytes, as file names of folders do.
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep every header
                # A sparse file's size is that of its holes too; it is refused by its kind.
                if not member.issparse() and (member.size < 0 or member.offset_data + member.size > size):
                    raise FolderError(f"{damaged} ({member.name} goes on beyond its end): write or copy it again")
                yield member
    except FolderError:
        raise
    except (tarfile.TarError, ValueError, OverflowError, LookupError, RecursionError) as error:
        raise FolderError(f"{damaged} ({' '.join(str(error).split())}): write or copy it again") from error
    # tarfile takes any later block that is no header for the end, so a file with a hole would lose its rest unnoticed.
    file.seek(tar.offset)
    if file.read(_BLOCK) != bytes(_BLOCK):
        raise FolderError(f"{damaged} (no end mark after byte {tar.offset}): write or copy it again")
    if any(file.read(_TAIL)):
        raise FolderError(
            f"{shard} goes on after its end mark, as tars joined with `cat` do: keep them as files of their own"
        )


def _checked_name(member: tarfile.TarInfo, shard: str) -> str:
    """The member's name without ``./``. Raises FolderError for names and kinds a data set has no use for."""
    name = member.name
    parts = [part for part in name.split("/") if part not in ("", ".")]
    kind = ""
    if name.startswith("/"):
        kind = "an absolute path"
    elif ".." in parts:
        kind = "a path with `..`"
    elif "\0" in name:
        kind = "a name with a NUL"
    elif member.issym() or member.islnk():
        kind = "a link"
    elif member.issparse():
        kind = "a sparse file"
    elif not (member.isreg() or member.isdir()):
        kind = "neither a file nor a folder"
    if kind:
        raise FolderError(f"{shard} holds {name!r}, {kind}: shards hold plain files only, write it without")
    return "/".join(parts)


def _read_class(file: BinaryIO, member: tarfile.TarInfo, shard: str) -> str:
    text = ""
    if member.size <= _LONGEST_CLS:
        file.seek(member.offset_data)
        text = file.read(member.size).decode("utf-8-sig", "replace").strip()
    if not text or not text.isprintable() or "\ufffd" in text:
        raise FolderError(f"{shard}!{member.name} names no class: it must hold a class's index or name as one line")
    return text


def _from_folders(images: dict[str, tuple[int, int]], ignored: Counter[str]) -> list[str]:
    """The first folder of each image; drops those that lie in none."""
    for name in [name for name in images if "/" not in name]:
        del images[name]
        ignored["outside class folders"] += 1
    return [name.split("/", 1)[0] for name in images]


def _from_sidecars(
    images: dict[str, tuple[int, int]], sidecars: dict[str, str], shard: str, ignored: Counter[str]
) -> list[str]:
    """The class in the ``.cls`` of each image; drops the further images of a key (``key.mask.png``)."""
    used: set[str] = set()
    classes = []
    for name in list(images):
        key = os.path.splitext(name)[0]
        if key in used:
            raise FolderError(f"{shard} holds two images for {key}.cls: keep one image a key")
        if key in sidecars:
            used.add(key)
            classes.append(sidecars[key])
            continue
        folder, _, base = name.rpartition("/")
        if (f"{folder}/" if folder else "") + base.split(".", 1)[0] not in sidecars:
            raise FolderError(
                f"{shard}!{name} has no {os.path.basename(key)}.cls beside it: add it or leave the image out"
            )
        del images[name]
        ignored["further images of a key"] += 1
    if len(sidecars) > len(used):
        ignored[".cls without an image"] += len(sidecars) - len(used)
    return classes


def _table(images: dict[str, tuple[int, int]], classes: list[str], from_cls: bool, ignored: Counter[str]) -> TarTable:
    names = tuple(dict.fromkeys(classes))
    at = {name: label for label, name in enumerate(names)}
    return TarTable(
        Names(images),
        np.array([offset for offset, _ in images.values()], dtype=np.int64),
        np.array([size for _, size in images.values()], dtype=np.int64),
        names,
        np.array([at[name] for name in classes], dtype=np.int32),
        from_cls,
        dict(ignored),
    )

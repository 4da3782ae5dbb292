"""Which tar files a pattern stands for."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.utils import infer_storage_options
from shard_cases import TWO, refused, write_tar

from data.shard_pattern import expand_pattern


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("s-{000..002}.tar", ["s-000.tar", "s-001.tar", "s-002.tar"]),
        ("s-00{2..1}.tar", ["s-002.tar", "s-001.tar"]),
        ("s-{000,002}.tar", ["s-000.tar", "s-002.tar"]),
        ("{s,u}-00{0..1}.tar", ["s-000.tar", "s-001.tar", "u-000.tar", "u-001.tar"]),
        ("s-*.tar", ["s-000.tar", "s-001.tar", "s-002.tar"]),
        ("?-001.tar", ["s-001.tar", "u-001.tar"]),
        ("[u]-*.tar", ["u-000.tar", "u-001.tar"]),
        ("s-{000,000}.tar", ["s-000.tar"]),
        ("n-{8..10}.tar", ["n-8.tar", "n-9.tar", "n-10.tar"]),
        ("{odd}.tar", ["{odd}.tar"]),
        ("{1,2}.tar", ["{1,2}.tar"]),
    ],
)
@pytest.mark.parametrize("prefix", ["", "file://"])
def test_patterns(tmp_path: Path, pattern: str, found: list[str], prefix: str) -> None:
    names = "s-000 s-001 s-002 u-000 u-001 n-8 n-9 n-10 {odd} {1,2}".split()
    for name in names:
        (tmp_path / f"{name}.tar").touch()
    assert expand_pattern(f"{prefix}{tmp_path}/{pattern}") == [f"{tmp_path}/{name}" for name in found]


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("none-*.tar", "no tar file matches"),
        ("none.tar", "no tar file matches"),
        ("{0..3}.tar", "2 of the 4 shards of"),
        ("{0..99999999}.tar", "more than 100000 files"),
        ("{0..9999}{0..9999}.tar", "more than 100000 files"),
        ("", "is a folder: name its tar files"),
        ("zzz://b/x.tar", "cannot open zzz://b/x.tar"),
        ("memory://nowhere/*.tar", "no tar file matches memory://"),
    ],
)
def test_patterns_that_match_too_little_or_too_much(tmp_path: Path, pattern: str, part: str) -> None:
    for name in "12":
        write_tar(tmp_path / f"{name}.tar", TWO)
    assert part in refused(pattern if "://" in pattern else str(tmp_path / pattern))


class WithHost(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """As the drivers of ftp, sftp and hdfs do: the host is theirs to know, a path comes without it."""

    protocol = "withhost"
    _names = ("/d/t-0.tar", "/d/t-1.tar")

    def __init__(self, host: str, **options: Any) -> None:
        super().__init__(**options)
        self.host = host

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return infer_storage_options(path)["path"]

    @staticmethod
    def _get_kwargs_from_urls(url: str) -> dict[str, Any]:
        return {"host": infer_storage_options(url)["host"]}

    def glob(self, path: str, **options: Any) -> list[str]:
        return [name for name in self._names if fnmatch.fnmatch(name, path)]


def test_a_star_keeps_host_and_cache() -> None:
    fsspec.register_implementation("withhost", WithHost, clobber=True)
    assert expand_pattern("withhost://server/d/t-*.tar") == [
        "withhost://server/d/t-0.tar",
        "withhost://server/d/t-1.tar",
    ]
    memory = fsspec.filesystem("memory")
    memory.pipe("/shards/t-0.tar", b"")
    try:
        assert expand_pattern("simplecache::memory://shards/t-*.tar") == ["simplecache::memory://shards/t-0.tar"]
        assert expand_pattern("memory://shards/t-*.tar") == ["memory://shards/t-0.tar"]
    finally:
        memory.rm("/shards", recursive=True)

"""Tar files in places that fsspec reaches."""

from __future__ import annotations

import io
from typing import Any

import pytest
from shard_cases import TWO, in_children, listings, refused, tar_bytes

from data import shards
from data.shards import open_shards


def test_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = pytest.importorskip("fsspec").filesystem("memory")
    fs.pipe("/bucket/t-0.tar", tar_bytes(TWO))
    fs.pipe("/bucket/t-1.tar", tar_bytes([("a/2.jpg", b"a2")]))
    fs.pipe("/bucket/bad.tar", tar_bytes(TWO)[:600])
    for pattern in ("memory://bucket/t-{0..1}.tar", "memory://bucket/t-*.tar"):
        train, _ = open_shards(pattern, pattern)
        assert [train.read(i) for i in range(3)] == [b"a1", b"a2", b"b1"]
        assert train.name(1).startswith("memory://")
        assert train.name(1).endswith("bucket/t-1.tar!a/2.jpg")
    assert in_children(train, [[2, 1, 0]]) == [[b"b1", b"a2", b"a1"]]
    assert "bad.tar is damaged" in refused("memory://bucket/bad.tar")
    monkeypatch.setattr(shards, "open_shard", None)  # the second start lists nothing
    assert len(open_shards(pattern, pattern)[0]) == 3


def test_a_remote_place_with_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """As s3 and https have: its connections do not outlive a fork, and its errors need be no OSError."""
    fsspec = pytest.importorskip("fsspec")
    from fsspec.asyn import AsyncFileSystem

    files = {"bucket/t-0.tar": tar_bytes(TWO), "bucket/t-1.tar": tar_bytes([("a/2.jpg", b"a2")])}

    class Remote(AsyncFileSystem):  # type: ignore[misc]
        protocol = "toy"

        async def _info(self, path: str, **_: Any) -> dict[str, Any]:
            if path not in files:
                raise FileNotFoundError(path)
            return {"name": path, "size": len(files[path]), "type": "file", "ETag": str(hash(files[path]))}

        async def _cat_file(self, path: str, start: int = 0, end: int | None = None, **_: Any) -> bytes:
            if path not in files:
                raise LookupError("no such key")
            return files[path][start:end]

        def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
            return io.BytesIO(files[path])

    fsspec.register_implementation("toy", Remote, clobber=True)
    pattern = "toy://bucket/t-{0..1}.tar"
    train, _ = open_shards(pattern, pattern)
    assert train.read(0) == b"a1"
    assert in_children(train, [[1, 2], [2, 0]]) == [[b"a2", b"b1"], [b"b1", b"a1"]]
    seen = listings(monkeypatch)
    open_shards(pattern, pattern)
    assert seen == []
    files["bucket/t-1.tar"] = tar_bytes([("a/3.jpg", b"a3")])
    assert open_shards(pattern, pattern)[0].read(1) == b"a3"
    assert seen == ["toy://bucket/t-1.tar"]
    del files["bucket/t-1.tar"]
    with pytest.raises(OSError, match="cannot read toy://bucket/t-1.tar .LookupError: no such key"):
        train.read(1)
    assert "1 of the 2 shards" in refused(pattern)

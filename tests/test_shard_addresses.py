"""Tar files behind URLs: what messages show of an address, and servers that give whole files only."""

from __future__ import annotations

import io
from typing import Any

import pytest
from shard_cases import TWO, refused, tar_bytes

from data.addresses import shown
from data.shards import open_shards

fsspec = pytest.importorskip("fsspec")
SECRET = "s3cret"


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("/data/a@b?c.tar", "/data/a@b?c.tar"),
        ("s3://bucket/t-{0..9}?.tar", "s3://bucket/t-{0..9}?.tar"),
        (f"ftp://me:{SECRET}@host/t.tar", "ftp://host/t.tar"),
        (f"https://me:{SECRET}@host:80/a@b.tar?X-Signature={SECRET}", "https://host:80/a@b.tar"),
        (f"simplecache::https://me@host/t.tar?key={SECRET}#x", "simplecache::https://host/t.tar"),
        (f"no file 'http://h/t.tar?k={SECRET}', gone", "no file 'http://h/t.tar', gone"),
    ],
)
def test_an_address_is_shown_without_password_and_query(address: str, wanted: str) -> None:
    assert shown(address) == wanted


class Web(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Serves ``files``, parts of them where ``ranges`` says so, as fsspec's HTTP file system does."""

    protocol = "toyweb"
    cachable = False
    files: dict[str, bytes] = {}
    ranges = False
    error: Exception | None = None
    refusal: Exception | None = None

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        if self.refusal is not None:  # whatever it was, fsspec's HTTP file system says that there is no file
            raise FileNotFoundError(path) from self.refusal
        if path not in self.files:
            raise FileNotFoundError(f"toyweb://me:{SECRET}@host/{path}")
        return {"name": path, "size": len(self.files[path]), "type": "file"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        if self.error is not None:
            raise self.error
        return self.files[path][start:end] if self.ranges else self.files[path]

    def open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        class File(io.BytesIO):
            def seek(self, offset: int, whence: int = 0) -> int:
                if offset and not Web.ranges:
                    raise ValueError("Cannot seek streaming HTTP file")
                return super().seek(offset, whence)

        return File(self.files[path])


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> type[Web]:
    fsspec.register_implementation("toyweb", Web, clobber=True)
    monkeypatch.setattr(Web, "files", {f"me:{SECRET}@host/t.tar": tar_bytes(TWO)})
    monkeypatch.setattr(Web, "ranges", True)
    monkeypatch.setattr(Web, "error", None)
    monkeypatch.setattr(Web, "refusal", None)
    return Web


ADDRESS = f"toyweb://me:{SECRET}@host/t.tar"


def test_a_server_that_gives_whole_files_only_is_named(web: type[Web]) -> None:
    web.ranges = False
    message = refused(ADDRESS)
    assert message.startswith("cannot read parts of toyweb://host/t.tar (ValueError: Cannot seek")
    assert message.endswith("its server must answer range requests; use one that does, or copy the tar files to a disk")
    web.ranges = True
    train, _ = open_shards(ADDRESS, ADDRESS)
    assert train.read(0) == b"a1"
    web.ranges = False  # behind a balancer one server may and another not
    with pytest.raises(OSError, match="where 2 were asked for: its server must answer range requests"):
        train.read(0)


def test_a_server_in_trouble_is_no_missing_file(web: type[Web]) -> None:
    web.refusal = ConnectionError(f"500, url='toyweb://me:{SECRET}@host/t.tar'")
    message = refused(ADDRESS)
    assert message.startswith("cannot list toyweb://host/t.tar (ConnectionError: 500, url='toyweb://host/t.tar')")
    gone = ConnectionError("404")
    gone.status = 404  # type: ignore[attr-defined]
    for web.refusal in (FileNotFoundError("404"), gone):
        assert refused(ADDRESS).startswith("no tar file matches toyweb://host/t.tar")


def test_no_message_names_a_password(web: type[Web]) -> None:
    train, _ = open_shards(ADDRESS, ADDRESS)
    said = [train.name(0), train.describe()]
    assert said[0] == "toyweb://host/t.tar!a/1.jpg"
    web.files = {**web.files, "me@host/bad.tar": tar_bytes(TWO)[:600], "me@host/c.tar": tar_bytes([("c/1.jpg", b"c")])}
    said += [refused(f"toyweb://me:{SECRET}@host/none.tar"), refused(f"toyweb://me:{SECRET}@host/{{t,u}}.tar")]
    said += [refused("toyweb://me@host/bad.tar"), refused(ADDRESS, "toyweb://me@host/c.tar")]
    said += [refused(f"nodriver://me:{SECRET}@host/t.tar"), refused(f"toyweb://{SECRET}@h/{{0..9999999}}.tar")]
    for error in (FileNotFoundError(ADDRESS), KeyError(f"me:{SECRET}@host/t.tar")):
        web.error = error
        with pytest.raises(OSError, match="cannot read toyweb://host/t.tar") as caught:
            train.read(0)
        said.append(str(caught.value))
    for text in said:
        assert SECRET not in text
        assert "me@" not in text

"""Addresses of tar files: paths, and URLs that fsspec opens; how both are shown."""

from __future__ import annotations

import re

_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")
_USER = re.compile(r"""[^\s/'"@]+:[^\s/'"@]+@""")  # an address may come without its scheme in a driver's error
_QUERY = re.compile(r"(https?://[^\s?#]*)[?#][^\s'\"),]*")  # elsewhere a question mark stands for a letter


def is_url(path: str) -> bool:
    """Whether fsspec must open it."""
    return "://" in path or "::" in path


def shown(text: str) -> str:
    """An address, or a text with addresses in it, for a message: without passwords, and queries, which may hold keys."""
    return _QUERY.sub(r"\1", _CREDENTIALS.sub("", text))


def shown_error(error: BaseException) -> str:
    """Kind and text of an error of some driver, on one line."""
    return _USER.sub("", shown(" ".join(f"{type(error).__name__}: {error}".split())))

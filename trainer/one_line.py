"""Texts with names in them that may hold anything, as one line that a terminal shows and nothing else."""

from __future__ import annotations


def printable(text: str) -> str:
    """Characters that do not print as escapes (``\\n``, ``\\x1b``, ``\\udcff``); runs of spaces stay, paths may have them."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def one_line(text: str) -> str:
    """Lines joined by a space, and what does not print as escapes."""
    return printable(" ".join(part.strip() for part in text.splitlines()))

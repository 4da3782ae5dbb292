"""Files of tensors and plain values, read without running what they hold."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import torch

# What reading some bytes as a pickle may end in.
_NO_PICKLE = ("UnpicklingError", "EOFError", "IndexError", "KeyError")


class TensorFileError(ValueError):
    """A file that cannot or must not be read; the text says why, as the end of a sentence."""


def read_tensor_file(path: str | Path) -> Any:
    """The file's content on the CPU: tensors, numbers, text and what holds them. Raises TensorFileError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a foreign pickle protocol: what comes of it is said below
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's own text goes on to advise loading it unsafely.
        asked = re.search(r"GLOBAL:? ([\w.]+)", str(error))
        if asked:
            raise TensorFileError(
                f"it holds more than tensors and plain values ({asked[1][:80]}), which could run code, so none of it was loaded"
            ) from error
        raise TensorFileError(f"it is damaged or of another kind ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    """Without the page of advice that torch adds, of which nothing helps here."""
    if type(error).__name__ in _NO_PICKLE or "weights_only" in str(error):
        return "no file of tensors"
    return printable(f"{type(error).__name__}: {error}".split(". ")[0])


def printable(text: str, most: int = 160) -> str:
    """Some text of another library on one line, without control characters."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())[:most]

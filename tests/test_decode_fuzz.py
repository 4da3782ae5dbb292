"""Damaged files: an image or a DecodeError with a reason, never a warning, nor memory for a size that is only claimed."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
from pictures import image_files

from data import decode
from data.decode import DecodeError, Decoder

FILES = image_files()
MUTANTS = 12  # of each kind of file


def damaged(data: bytes, generator: random.Random) -> bytes:
    """Cut off, overwritten, missing or added bytes; more often in the first hundred, where headers are."""
    found = bytearray(data)
    end = min(len(found), 100) if generator.random() < 0.6 else len(found)
    at, length = generator.randrange(end), generator.randint(1, 40)
    way = generator.randrange(5)
    if way == 0:
        del found[generator.randrange(len(found)) :]
    elif way == 1:
        del found[at : at + length]
    elif way == 2:
        found[at:at] = generator.randbytes(length)
    else:
        for _ in range(generator.randint(1, 8)):
            found[generator.randrange(end)] = generator.randrange(256)
    return bytes(found)


@pytest.mark.parametrize("with_simplejpeg", [True, False])
@pytest.mark.parametrize("kind", FILES)
def test_damage_is_an_image_or_a_reason(
    kind: str, with_simplejpeg: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    if not with_simplejpeg:
        monkeypatch.setattr(decode, "simplejpeg", None)
    generator = random.Random(f"{kind} {with_simplejpeg}")
    reasons: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(MUTANTS):
            data = damaged(FILES[kind], generator)
            least = generator.choice((1.0, 0.5, 0.3, 0.1))
            try:
                header = Decoder(generator.random() < 0.5, max_pixels=10**6)(data)
                pixels = header.decode(least)
            except DecodeError as error:
                reasons.append(str(error))
                continue
            assert header.height * header.width <= 10**6
            assert pixels.dtype == np.uint8
            assert pixels.flags.c_contiguous
            for side, whole in zip(pixels.shape, (header.height, header.width), strict=False):
                assert side == whole or (least <= 0.5 and whole >= side >= whole * least)
            assert pixels.shape[2] == 3
    assert reasons
    assert all(reason and "\n" not in reason for reason in reasons)
    if not kind.startswith("tiff"):  # libtiff says on stderr what is wrong with a file
        assert capfd.readouterr() == ("", "")

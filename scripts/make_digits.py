"""Write scikit-learn's 1,797 scanned handwritten digits as class folders for train.py.

OUT/train/<digit>/NNNN.png and OUT/val/<digit>/NNNN.png, grey, 32 pixels a side; NNNN is the image's place in
scikit-learn's set. Every fifth image of a digit is for validation, so the split is stratified (80/20) and the
same everywhere.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

IMAGE_SIZE = 32
SOURCE_MAX = 16  # the brightest value of the 8x8 originals
VAL_EVERY = 5
SPLITS = ("train", "val")


def load_digits() -> tuple[Any, list[int]]:
    """The originals, N x 8 x 8 with values 0..16, and the digit each one shows. Needs scikit-learn."""
    from sklearn import datasets

    digits = datasets.load_digits()
    return digits.images, [int(digit) for digit in digits.target]


def plan_files(digits: list[int]) -> list[str]:
    """Each image's path below OUT, in the order of the images."""
    seen: dict[int, int] = {}
    paths = []
    for index, digit in enumerate(digits):
        rank = seen[digit] = seen.get(digit, 0) + 1
        split = "val" if rank % VAL_EVERY == 0 else "train"
        paths.append(f"{split}/{digit}/{index:04d}.png")
    return paths


def enlarge(image: Any) -> Image.Image:
    """One 8x8 original as a grey 32-pixel image."""
    grey = np.rint(np.asarray(image) * (255 / SOURCE_MAX)).astype(np.uint8)
    return Image.fromarray(grey).resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BICUBIC)


def write_files(out: Path, images: Any, paths: list[str]) -> None:
    """Write all images below ``out``; an interruption leaves neither ``train`` nor ``val`` half filled."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".unfinished-") as unfinished:
        for image, path in zip(images, paths, strict=True):
            target = Path(unfinished, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            enlarge(image).save(target)
        for split in SPLITS:
            Path(unfinished, split).rename(out / split)


def files_below(out: Path) -> set[str]:
    """What ``train`` and ``val`` hold, as paths below ``out``."""
    found = (path for split in SPLITS for path in (out / split).rglob("*") if not path.is_dir())
    return {path.relative_to(out).as_posix() for path in found}


def main(argv: list[str] | None = None) -> int:
    """Write the folders that ``argv`` (default: the command line) names; the exit code, 2 for the user's mistake."""
    parser = argparse.ArgumentParser(description="Write scikit-learn's handwritten digits as class folders.")
    parser.add_argument("out", metavar="OUT", type=Path, help="new or empty folder to write train/ and val/ into")
    out: Path = parser.parse_args(argv).out
    try:
        images, digits = load_digits()
    except ModuleNotFoundError as error:
        return _mistake(f"{error.name} is missing, which comes with scikit-learn: run `pip install scikit-learn`")
    paths = plan_files(digits)
    try:
        if out.exists() and not out.is_dir():
            return _mistake(f"{out} is a file: name a new or empty folder")
        if files_below(out) == set(paths):
            print(f"{out} already holds the digits; nothing to do.")
        elif out.is_dir() and any(out.iterdir()):
            return _mistake(f"{out} already holds other files: name a new or empty folder")
        else:
            write_files(out, images, paths)
    except OSError as error:
        return _mistake(f"cannot write to {out} ({error.strerror or error}): name a folder that can be written")
    counts = {split: sum(path.startswith(f"{split}/") for path in paths) for split in SPLITS}
    print(f"{out}: {counts['train']} training and {counts['val']} validation images of {len(set(digits))} digits.")
    print(f"Next: python train.py {shlex.quote(str(out))} -c configs/digits.yaml --channels-last true")
    return 0


def _mistake(message: str) -> int:
    print(f"make_digits.py: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

"""Write class folders of photo-like JPEGs, to feed loaders with: DIR/train/<class>/NNNN.jpg and DIR/val/<class>/NNNN.jpg.

Random crops of scikit-learn's two sample photographs (without scikit-learn of two drawn pictures), resized to 500x375,
or with --large to 2048x1536, under noise such as a sensor's: it decides how many bytes a JPEG takes, and with them how
long its Huffman decoding lasts. The same options and seed give the same pixels. The classes teach nothing: every one
holds the same kind of picture.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import numpy as np
from PIL import Image

from trainer.errors import UserError

SMALL, LARGE = (500, 375), (2048, 1536)  # width, height
SMALL_NOISE, LARGE_NOISE = 2.0, 6.0  # standard deviation, of 255
SPLITS = ("train", "val")
_CROP = (0.5, 1.0)  # share of the largest crop's sides
_DRAWN = (640, 427)  # the size of scikit-learn's photographs


def load_photographs() -> tuple[list[Image.Image], str]:
    """Two RGB pictures and where they come from."""
    try:
        from sklearn.datasets import load_sample_images
    except ImportError:
        return [draw_picture(seed) for seed in (1, 2)], "drawn pictures (scikit-learn is not installed)"
    return [Image.fromarray(image) for image in load_sample_images().images], "scikit-learn's sample photographs"


def draw_picture(seed: int) -> Image.Image:
    """A picture with a photograph's mixture: soft light, things with edges, texture at every scale."""
    generator = np.random.Generator(np.random.Philox(key=[seed, 0]))
    width, height = _DRAWN
    rows, columns = np.mgrid[0:height, 0:width]
    canvas = np.zeros((height, width, 3), np.float32)
    for cells in (2, 5, 11, 23, 47, 95, 191):
        grid = generator.normal(0, 1, (cells, cells, 3)).astype(np.float32)
        # Halving the scale halves the contrast: the spectrum of natural scenes.
        canvas += _enlarge(grid, (width, height)) * (110 / cells**0.75)
    for _ in range(40):
        centre, radius = generator.uniform(0, 1, 2) * (height, width), generator.uniform(8, 90, 2)
        inside = ((rows - centre[0]) / radius[0]) ** 2 + ((columns - centre[1]) / radius[1]) ** 2 < 1
        canvas[inside] = 0.4 * canvas[inside] + generator.uniform(-90, 90, 3)
    return Image.fromarray(np.clip(canvas + 120, 0, 255).astype(np.uint8))


def _enlarge(grid: Any, size: tuple[int, int]) -> Any:
    """A small (rows, columns, 3) grid at ``size``, smoothly."""
    layers = [Image.fromarray(grid[..., channel]).resize(size, Image.Resampling.BICUBIC) for channel in range(3)]
    return np.stack([np.asarray(layer) for layer in layers], axis=-1)


def make_photo(source: Image.Image, size: tuple[int, int], noise: float, generator: np.random.Generator) -> Image.Image:
    """A crop of ``source`` at ``size`` (width, height), maybe mirrored, a little brighter or darker, with noise."""
    width, height = size
    most = min(source.width / width, source.height / height)
    scale = most * generator.uniform(*_CROP)
    left = generator.uniform(0, source.width - width * scale)
    top = generator.uniform(0, source.height - height * scale)
    box = (left, top, left + width * scale, top + height * scale)
    pixels = np.asarray(source.resize(size, Image.Resampling.BICUBIC, box=box)).astype(np.float32)
    if generator.random() < 0.5:
        pixels = pixels[:, ::-1]
    pixels = pixels * np.float32(generator.uniform(0.8, 1.2))
    pixels = pixels + np.float32(noise) * generator.standard_normal(pixels.shape, dtype=np.float32)
    return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))


def write_photos(out: Path, args: argparse.Namespace, size: tuple[int, int], noise: float) -> str:
    """Write both splits; an interruption leaves neither half filled. Returns where the pictures came from."""
    sources, origin = load_photographs()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".unfinished-") as unfinished:
        for part, (split, count) in enumerate(zip(SPLITS, (args.train, args.val), strict=True)):
            for label in range(args.classes):
                folder = Path(unfinished, split, f"class{label:03d}")
                folder.mkdir(parents=True)
                for number in range(count):
                    generator = np.random.Generator(
                        np.random.Philox(key=[args.seed, (number << 20) + (label << 1) + part])
                    )
                    photo = make_photo(sources[(label + number) % len(sources)], size, noise, generator)
                    photo.save(folder / f"{number:04d}.jpg", quality=args.quality)
            common.note(f"{split}: {count * args.classes} photos")
        for split in SPLITS:
            Path(unfinished, split).rename(out / split)
    return origin


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("out", metavar="DIR", type=Path, help="new or empty folder to write train/ and val/ into")
    add("--large", action="store_true", help="2048x1536 instead of 500x375 pixels")
    add("--noise", type=float, metavar="SIGMA", help="standard deviation of the noise, of 255 (2; 6 with --large)")
    add("--classes", type=common.at_least(1), default=10, metavar="N", help="class folders (10)")
    add("--train", type=common.at_least(1), default=48, metavar="N", help="training photos a class (48)")
    add("--val", type=common.at_least(1), default=4, metavar="N", help="validation photos a class (4)")
    add("--quality", type=common.at_least(1), default=92, metavar="Q", help="JPEG quality, 1 to 95 (92)")
    add("--seed", type=common.at_least(0), default=0, metavar="N", help="seed of crops and noise (0)")
    args = parser.parse_args(argv)
    if args.noise is not None and not 0 <= args.noise <= 255:
        parser.error(f"--noise takes a number from 0 to 255, got {args.noise:g}")
    if args.quality > 95:
        parser.error(f"--quality takes a number up to 95, got {args.quality}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("make_photos", lambda: make(argv))


def make(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    out: Path = args.out
    size = LARGE if args.large else SMALL
    noise = args.noise if args.noise is not None else LARGE_NOISE if args.large else SMALL_NOISE
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} is no empty folder: name a new or empty one")
        origin = write_photos(out, args, size, noise)
    except OSError as error:
        raise UserError(
            f"cannot write to {out} ({error.strerror or error}): name a folder that can be written"
        ) from error
    mean = sum(path.stat().st_size for path in out.rglob("*.jpg")) / ((args.train + args.val) * args.classes)
    print(
        f"{out}: {args.train * args.classes} training and {args.val * args.classes} validation photos of {args.classes} "
        f"classes, {size[0]}x{size[1]}, noise {noise:g}, {mean / 1024:.0f} KiB on average, from {origin}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

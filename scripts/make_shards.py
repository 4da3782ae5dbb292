"""Write the class folders DIR/train and DIR/val as tar files for train.py's --train-shards and --val-shards.

DST/train-00000.tar, DST/val-00000.tar, ...: images in the order and with the labels that train.py gives DIR, so that
both train alike. Nothing of the files but names and content is kept: the same folder gives the same bytes.

--style folder      members are <class>/<path>
--style webdataset  members are <number>.<suffix> and <number>.cls, the class's index; the classes are then named by
                    their indices, and DST/classes.json lists what they stood for
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "scripts" / "bench")) if path not in sys.path]

from common import Parser, at_least, note, run_to_exit_code  # noqa: E402

from data.folder import FolderError, scan_data_dir  # noqa: E402
from data.index import SampleIndex  # noqa: E402
from trainer.errors import BadDataError, UserError, os_reason  # noqa: E402

SPLITS = ("train", "val")
CLASSES = "classes.json"


def members_of(index: SampleIndex, folder: str, style: str) -> Iterator[list[tuple[str, bytes]]]:
    """The members each image of a split becomes: (name, content), one image at a time. Raises BadDataError.

    ``folder``: where the split's class folders lie.
    """
    for number in range(len(index)):
        path, label = index.name(number), int(index.labels[number])
        if style == "webdataset":
            # A number for a key keeps the folder's order, and names with dots have a meaning of their own there.
            key = f"{number:08d}"
            suffix = os.path.splitext(path)[1].lower()
            yield [(key + suffix, content_of(index, number)), (f"{key}.cls", str(label).encode())]
            continue
        name = os.path.relpath(path, folder).replace(os.sep, "/")
        if not name.startswith(f"{index.classes[label]}/"):
            name = f"{index.classes[label]}/{name}"  # labels from elsewhere than the folders
        yield [(name, content_of(index, number))]


def content_of(index: SampleIndex, number: int) -> bytes:
    """The file's bytes, good or bad. Raises BadDataError where it cannot be read at all."""
    try:
        return index.read(number)
    except OSError as error:
        raise BadDataError(
            f"cannot read {index.name(number)} ({os_reason(error)}): mend or remove it and start again; nothing was kept"
        ) from error


def write_split(folder: Path, split: str, samples: Iterator[list[tuple[str, bytes]]], most: int) -> list[str]:
    """Write ``folder/split-NNNNN.tar`` of up to ``most`` bytes each (one image at the least); their names."""
    names: list[str] = []
    with contextlib.ExitStack() as opened:
        file: BinaryIO | None = None
        for sample in samples:
            packed = b"".join(pack_member(name, content) for name, content in sample)
            if file is None or _whole(file.tell() + len(packed)) > most:
                opened.close()
                names.append(f"{split}-{len(names):05d}.tar")
                file = opened.enter_context(open(folder / names[-1], "wb"))
                opened.callback(_end, file)
                note(names[-1])
            file.write(packed)
    return names


def pack_member(name: str, content: bytes) -> bytes:
    """One member of a tar file: header, content, padding; without times and owners."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    header = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    return header + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def _whole(size: int) -> int:
    """A tar file's length once its end mark is written: whole records, as `tar` writes them."""
    return -(-(size + 2 * tarfile.BLOCKSIZE) // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def _end(file: BinaryIO) -> None:
    file.write(bytes(_whole(file.tell()) - file.tell()))


def write_shards(
    source: str, out: Path, style: str, most: int, val_labels: str | None = None
) -> tuple[list[list[str]], list[int]]:
    """Write both splits; an interruption leaves nothing in ``out``. The names a split, and the images.

    ``val_labels``: list of names and classes for a val folder without class folders.

    Raises FolderError for a folder that cannot be trained on, OSError.
    """
    indexes = scan_data_dir(source, val_labels=val_labels)
    names = []
    with tempfile.TemporaryDirectory(dir=out, prefix=".unfinished-") as unfinished:
        for split, index in zip(SPLITS, indexes, strict=True):
            samples = members_of(index, os.path.join(source, split), style)
            names.append(write_split(Path(unfinished), split, samples, most))
        if style == "webdataset":
            Path(unfinished, CLASSES).write_text(json.dumps(indexes[0].classes, indent=0) + "\n", encoding="utf-8")
        for path in sorted(Path(unfinished).iterdir()):
            os.replace(path, out / path.name)
    return names, [len(index) for index in indexes]


def pattern_of(out: Path, split: str, names: Sequence[str]) -> str:
    """What train.py takes for these shards; braces rather than a star, so that a missing one is noticed."""
    if len(names) == 1:
        return str(out / names[0])
    return f"{out / split}-{{{0:05d}..{len(names) - 1:05d}}}.tar"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("source", metavar="DIR", help="folder with train/ and val/, one folder a class; it is only read")
    add("out", metavar="DST", type=Path, help="folder to write the tar files into; it must not hold any yet")
    add(
        "--shard-size-mb",
        type=at_least(1),
        default=256,
        metavar="N",
        help="most megabytes (1024 * 1024) a tar file (256)",
    )
    add(
        "--val-labels",
        metavar="FILE",
        help="for a flat DIR/val: text or csv file of `file name,class` lines, as train.py",
    )
    add("--style", choices=("folder", "webdataset"), default="folder", help="names of the members, see above (folder)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the shards that ``argv`` (default: the command line) asks for; the exit code, 2 for the user's mistake."""
    return run_to_exit_code("make_shards", lambda: make(parse(argv)))


def make(args: argparse.Namespace) -> int:
    """Write the shards and print how to train on them. Raises UserError."""
    out: Path = args.out
    if any(sign in str(out) for sign in ("::", ":/", *"{}*?[]")):  # a Path leaves one of two slashes
        raise UserError(
            f"{out} would be read as an address or a pattern by --train-shards: name a folder without such signs"
        )
    for folder in (args.source, *(os.path.join(args.source, split) for split in SPLITS)):  # each may be a link
        read, written = os.path.realpath(folder), os.path.realpath(out)
        if os.path.commonpath([read, written]) == read:
            raise UserError(f"{out} lies in {folder}, which is only read: name a folder outside")
    try:
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file: name a folder")
        if out.is_dir() and (any(out.glob("*.tar")) or (out / CLASSES).exists()):
            raise UserError(f"{out} already holds tar files: name another folder or remove them")
        out.mkdir(parents=True, exist_ok=True)
        names, counts = write_shards(args.source, out, args.style, args.shard_size_mb << 20, args.val_labels)
    except FolderError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(
            f"cannot write shards to {out} ({error}): mend that and start again; nothing was kept"
        ) from error
    files = sum(map(len, names))
    print(f"{out}: {counts[0]} training and {counts[1]} validation images in {files} tar files.")
    train, val = (shlex.quote(pattern_of(out, split, found)) for split, found in zip(SPLITS, names, strict=True))
    print(f"Next: python train.py --train-shards {train} --val-shards {val}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What prepare_folder.py keeps in DST for its next start: the settings, and a record of which file was made from what."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from data.cache_files import replace_file
from trainer.errors import UserError

# Hidden, so that no listing takes them for data.
SETTINGS = ".prepared.json"
RECORD = ".prepared.jsonl"


class Made(NamedTuple):
    """A file of ``size`` bytes, from the source of this ``mark``; or a link (size 0), whose mark is where it leads."""

    mark: int | str
    size: int


def mark_of(status: os.stat_result) -> int:
    """64 bits that change when a file is written to or replaced, whatever date and size it has then."""
    facts = f"{status.st_size}/{status.st_mtime_ns}/{status.st_ctime_ns}/{status.st_ino}"
    return int.from_bytes(hashlib.blake2b(facts.encode(), digest_size=8).digest(), "little")


def claim(out: Path, settings: dict[str, object]) -> None:
    """Make DST, or see that it is the work of the same settings. Raises UserError, OSError."""
    path = out / SETTINGS
    if path.is_file():
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            old = {key: stored[key] for key in settings}
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{path} is damaged: name a new DST") from error
        changed = [f"{key} {old[key]}" for key in settings if old[key] != settings[key]]
        if changed:
            raise UserError(f"{out} was made with {', '.join(changed)}: ask for the same, or name a new DST")
        return
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out} already holds other files: name a new or empty folder")
    out.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(settings) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all. Raises OSError."""
    replace_file(path, lambda stream: stream.write(text.encode("utf-8", "surrogateescape")))


def add_to_record(out: Path, name: str, made: Made) -> None:
    """Note a file that is in place. Raises OSError."""
    # One write at the end of the file: lines of several processes do not mix.
    with open(out / RECORD, "ab", buffering=0) as file:
        file.write(_line(name, made))


def read_record(out: Path) -> dict[str, Made]:
    """What was made so far by its name in DST; damaged lines count as not made. Raises OSError."""
    made: dict[str, Made] = {}
    lines = 0
    try:
        with open(out / RECORD, "rb") as file:
            for line in file:
                lines += 1
                made.update(_read_line(line))
    except FileNotFoundError:
        return {}
    if lines != len(made):
        write_record(out, made)
    return made


def write_record(out: Path, made: Mapping[str, Made]) -> None:
    """Write the record anew. Raises OSError."""
    replace_file(out / RECORD, lambda stream: stream.writelines(_line(name, item) for name, item in made.items()))


def _line(name: str, made: Made) -> bytes:
    return json.dumps([name, *made]).encode() + b"\n"


def _read_line(line: bytes) -> dict[str, Made]:
    try:
        name, mark, size = json.loads(line)
    except (ValueError, TypeError):
        return {}
    sound = isinstance(name, str) and isinstance(mark, int | str) and isinstance(size, int)
    # Files are removed by these names: none may lead out of DST.
    return {name: Made(mark, size)} if sound and not os.path.isabs(name) and ".." not in name.split("/") else {}


def make_folders(out: Path, names: Iterable[str]) -> None:
    """The folders of all targets; a link in DST must not lead out of it. Raises UserError, OSError."""
    for folder in sorted({os.path.dirname(name) for name in names}):
        (out / folder).mkdir(parents=True, exist_ok=True)
        if not _is_own(out, folder):
            raise UserError(f"{out / folder} leads to {os.path.realpath(out / folder)} by a link: remove it")


def _is_own(out: Path, folder: str) -> bool:
    """Whether no part of a folder's name in DST is a link."""
    return os.path.realpath(out / folder) == os.path.join(os.path.realpath(out), folder).rstrip(os.sep)


def make_links(out: Path, links: Mapping[str, str], made: Mapping[str, Made]) -> None:
    """Links between folders of DST, as they are in SRC; those to a folder without an image are left out.

    Raises UserError where something else has a link's name, OSError.
    """
    for name, folder in links.items():
        path, leads_to = out / name, os.path.relpath(folder, os.path.dirname(name))
        if not (out / folder).is_dir():
            continue
        if path.is_symlink() and name in made and os.readlink(path) == made[name].mark:
            if made[name].mark == leads_to:
                continue
            path.unlink()
        elif os.path.lexists(path):
            raise UserError(f"{path} stands where a link to {out / folder} belongs, as in SRC: remove it")
        make_folders(out, [name])
        path.symlink_to(leads_to)
        add_to_record(out, name, Made(leads_to, 0))


def find_stale(out: Path, made: Mapping[str, Made], wanted: set[str]) -> list[str]:
    """Names of what was made and is still as it was made, but has no source any more."""
    return [name for name, item in made.items() if name not in wanted and _is_as_made(out, name, item)]


def _is_as_made(out: Path, name: str, made: Made) -> bool:
    path = out / name
    try:
        if not _is_own(out, os.path.dirname(name)):  # by a link it would be another file
            return False
        return os.readlink(path) == made.mark if path.is_symlink() else path.stat().st_size == made.size
    except OSError:
        return False


def remove_stale(out: Path, made: dict[str, Made], stale: Iterable[str]) -> None:
    """Remove these from DST and the record, and the folders that are empty then. Raises OSError."""
    for name in stale:
        (out / name).unlink(missing_ok=True)
        del made[name]
        folder = os.path.dirname(name)
        while folder and not any((out / folder).iterdir()):
            (out / folder).rmdir()
            folder = os.path.dirname(folder)
    write_record(out, made)

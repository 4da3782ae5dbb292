#!/usr/bin/env python3
"""Write the tables of README.md and docs/migrating.md that follow from the parser and trainer/peer_flags.yaml.

Each stands between ``<!-- table NAME -->`` and ``<!-- end of table -->``; the text around it is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from trainer.config import DEFAULTS  # noqa: E402
from trainer.flags import GROUPS, ROWS, Row  # noqa: E402
from trainer.peer_flags import Peer, read_peers  # noqa: E402

PAGES = ("README.md", "docs/migrating.md")
PLACE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
DEFAULT = re.compile(r" \(default: (?P<value>.+)\)$")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 where a page is out of date")
    check = parser.parse_args().check
    stale = []
    for page in PAGES:
        path = ROOT / page
        old = path.read_text(encoding="utf-8")
        new = filled(old)
        if new != old:
            stale.append(page)
            if not check:
                path.write_text(new, encoding="utf-8")
    if stale:
        print(f"out of date: {', '.join(stale)}" if check else f"written: {', '.join(stale)}")
    return 1 if stale and check else 0


def filled(text: str) -> str:
    """``text`` with every table in it as it is now."""
    return PLACE.sub(lambda place: f"{place[1]}\n{TABLES[place[2]]()}\n{place[3]}", text)


def flags() -> str:
    """Our flags, a fold a group."""
    folds = []
    for group in GROUPS:
        table = _table(("flag", "default", "what it does"), (_flag_cells(row) for row in ROWS if row.group == group))
        folds.append(f"<details><summary>{group}</summary>\n\n{table}\n</details>\n")
    return "\n".join(folds)


def _flag_cells(row: Row) -> tuple[str, ...]:
    text = row.help_text(DEFAULTS.get(row.key)).replace("%%", "%")
    default = DEFAULT.search(text)
    return ", ".join(map(_code, row.flags)), default["value"] if default else "", DEFAULT.sub("", text)


def aliases() -> str:
    peers = [peer for peer in read_peers() if peer.ours]
    return _table(
        ("flag", "of", "here", ""), ((*_head(peer), _code(peer.ours or ""), peer.note or "") for peer in peers)
    )


def no_effect() -> str:
    peers = [peer for peer in read_peers() if peer.no_effect]
    return _table(("flag", "of", "because"), ((*_head(peer), peer.no_effect or "") for peer in peers))


def no_equivalent() -> str:
    peers = [peer for peer in read_peers() if peer.nearest]
    rows = (
        (*_head(peer), _code(peer.nearest or ""), ", ".join(map(_code, peer.same_at)), _remark(peer)) for peer in peers
    )
    return _table(("flag", "of", "nearest", "accepted at", ""), rows)


def _head(peer: Peer) -> tuple[str, str]:
    return ", ".join(map(_code, peer.flags)), ", ".join(peer.of)


def _remark(peer: Peer) -> str:
    return "; ".join(filter(None, [peer.why, peer.note]))


def _code(text: str) -> str:
    return text if text == "DIR" else f"`{text}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


TABLES: dict[str, Callable[[], str]] = {
    "flags": flags,
    "aliases": aliases,
    "no_effect": no_effect,
    "no_equivalent": no_equivalent,
}

if __name__ == "__main__":
    sys.exit(main())

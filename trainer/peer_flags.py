"""Flags of the scripts that people come from, turned into ours. Imports no torch.

``peer_flags.yaml`` says what becomes of each; it is read only when a command line holds a flag that is none of ours.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import UserError

TABLE = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class Peer:
    """One row of the table: spellings that share a verdict, which is one of ``ours``, ``no_effect`` and ``nearest``."""

    flags: tuple[str, ...]
    of: tuple[str, ...]
    ours: str | None = None  # our flag of the same meaning, with a value where the peer's is bare
    no_effect: str | None = None  # why it changes nothing
    takes: int = 0  # values that follow a flag without effect
    nearest: str | None = None
    why: str | None = None
    same_at: tuple[str, ...] = ()  # values at which it asks for what happens here anyway
    note: str | None = None

    def refusal(self, flag: str) -> UserError:
        reason = f" ({self.why})" if self.why else ""
        return UserError(f"{flag} has no equivalent here; the nearest flag is {self.nearest}{reason}", True)


def read_peers() -> list[Peer]:
    """The rows of ``peer_flags.yaml``, in its order."""
    import yaml

    with open(TABLE, encoding="utf-8") as stream:
        rows = yaml.load(stream, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return [_peer(**row) for row in rows]


def _peer(flags: str, of: str, same_at: Sequence[str] = (), **verdict: Any) -> Peer:
    return Peer(tuple(flags.split()), tuple(of.split()), same_at=tuple(same_at), **verdict)


def translate(tokens: Sequence[str], known: Collection[str]) -> tuple[list[str], list[str]]:
    """A command line with other scripts' flags replaced by ours, and a notice for each that has no effect.

    ``known`` are our flags, which win over the table. Raises UserError for a flag without an equivalent.
    """
    end = tokens.index("--") if "--" in tokens else len(tokens)
    if {"-h", "--help"} & set(tokens[:end]) or not any(_is_foreign(token, known) for token in tokens[:end]):
        return list(tokens), []
    peers = {flag: peer for peer in read_peers() for flag in peer.flags if flag not in known}
    # A bare alias goes before everything, so that the flag it stands for wins where both are given.
    first: list[str] = []
    rest: list[str] = []
    notices: dict[str, None] = {}
    position = 0
    while position < end:
        token = tokens[position]
        position += 1
        flag, equals, value = token.partition("=")
        peer = peers.get(flag)
        if peer is None:
            rest.append(token)
        elif peer.ours:
            _alias(peer.ours, token, first, rest)
        else:
            given = [value] if equals else list(tokens[position : min(end, position + _values_of(peer))])
            if peer.nearest and not _is_ours(given, peer.same_at):
                raise peer.refusal(flag)
            if peer.no_effect:
                notices[f"note: {flag} has no effect here: {peer.no_effect}"] = None
            position += 0 if equals else len(given)
    return [*first, *rest, *tokens[end:]], list(notices)


def _is_foreign(token: str, known: Collection[str]) -> bool:
    return token.startswith("--") and token.partition("=")[0] not in known


def _alias(ours: str, token: str, first: list[str], rest: list[str]) -> None:
    flag, equals, value = token.partition("=")
    our_flag, _, fixed = ours.partition(" ")
    if not fixed:
        rest.append(our_flag + equals + value)
    elif equals:
        raise UserError(f"{flag} takes no value: it stands for {ours}", True)
    else:
        first.append(f"{our_flag}={fixed}")


def _values_of(peer: Peer) -> int:
    return peer.takes if peer.no_effect else len(peer.same_at[0].split()) if peer.same_at else 0


def _is_ours(given: Sequence[str], same_at: Sequence[str]) -> bool:
    """Whether these values ask for what happens here; numbers compare as numbers."""
    return any(len(given) == len(same.split()) and all(map(_equal, given, same.split())) for same in same_at)


def _equal(one: str, other: str) -> bool:
    try:
        return math.isclose(float(one), float(other), rel_tol=0.01)
    except ValueError:
        return one.lower() == other.lower()

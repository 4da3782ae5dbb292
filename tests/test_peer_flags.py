"""Every flag of the scripts that people come from: an alias, without effect, or refused with the nearest of ours."""

from __future__ import annotations

import os
from typing import Any

import pytest
from helpers import refused
from test_flags import NEEDS_DIR, TABLE, key_of, words

from trainer import peer_flags
from trainer.cli import parse
from trainer.flags import ROWS
from trainer.peer_flags import Peer, read_peers

OURS = {flag: row for row in ROWS for flag in row.flags}
VALUES = {key_of(spellings): text for spellings, text, *_ in TABLE} | {"local_rank": "0"}
PEERS = [(flag, peer) for peer in read_peers() for flag in peer.flags if flag != "DIR"]


def pairs(verdict: str) -> Any:
    """One case for each flag of the rows with this verdict."""
    return [pytest.param(flag, peer, id=flag) for flag, peer in PEERS if getattr(peer, verdict)]


def given(*tokens: str) -> dict[str, Any]:
    return dict(parse(tokens).given)


@pytest.mark.parametrize(("flag", "peer"), pairs("ours"))
def test_an_alias_says_what_our_flag_says(flag: str, peer: Peer, tmp_path) -> None:
    assert peer.ours is not None
    ours, *fixed = peer.ours.split()
    key = OURS[ours].key
    if fixed:
        assert given(flag, "/images") == given(ours, *fixed, "/images")
        assert (
            given(ours, VALUES[key], flag) == given(ours, VALUES[key]) or flag in OURS
        )  # among ours the last one wins
        return
    (tmp_path / "config.yaml").write_text("momentum: 0.5\n")
    value = words({**VALUES, "config": str(tmp_path / "config.yaml")}[key])
    folder = ["/images"] if key in NEEDS_DIR else []
    assert given(flag, *value, *folder) == given(ours, *value, *folder)
    assert given(flag, *value, *folder) or key == "local_rank"


@pytest.mark.parametrize(("flag", "peer"), pairs("no_effect"))
def test_a_flag_without_effect_is_taken_with_one_notice(flag: str, peer: Peer) -> None:
    once = [flag, *["1"] * peer.takes]
    request = parse([*once, "images", *once])
    assert dict(request.given) == {"data_dir": os.path.abspath("images")}
    assert request.notices == [f"note: {flag} has no effect here: {peer.no_effect}"]
    if peer.takes:
        assert given(f"{flag}=-1", "images") == given("images")


@pytest.mark.parametrize(("flag", "peer"), pairs("nearest"))
def test_a_flag_without_equivalent_is_refused_and_the_nearest_named(flag: str, peer: Peer) -> None:
    assert peer.nearest in OURS
    for tokens in ([flag], [flag, "odd", "images"], [f"{flag}=odd"], ["-b", "8", flag, "-7"]):
        reason = refused(parse, tokens)
        assert reason.startswith(f"{flag} has no equivalent here; the nearest flag is {peer.nearest}"), reason
        assert reason.endswith(f"({peer.why})" if peer.why else str(peer.nearest))
    for value in peer.same_at:
        request = parse([flag, *value.split(), "images"])
        assert dict(request.given) == {"data_dir": os.path.abspath("images")}
        assert request.notices == []


def test_a_row_has_one_verdict_and_a_flag_one_row() -> None:
    for peer in read_peers():
        assert sum(map(bool, (peer.ours, peer.no_effect, peer.nearest))) == 1, peer
        assert set(peer.of) <= {"main_amp", "examples", "torchvision", "timm"}
        assert peer.of
    assert len({flag for flag, _ in PEERS}) == len(PEERS)


def test_our_own_flags_are_no_foreign_ones() -> None:
    """A flag of the table that the parser knows must be one of the same meaning: the parser wins."""
    for flag, peer in PEERS:
        if flag in OURS:
            assert peer.ours, f"{flag} is ours by now: peer_flags.yaml calls it something else"
            ours, *fixed = peer.ours.split()
            assert OURS[flag].key == OURS[ours].key
            assert fixed in ([], [OURS[flag].const])


def test_the_table_is_read_for_foreign_flags_only(monkeypatch) -> None:
    monkeypatch.setattr(peer_flags, "read_peers", None)
    assert given("-b32", "--lr", "-0", "--channels-last", "--", "--gpu")["data_dir"].endswith("--gpu")
    with pytest.raises(SystemExit):
        parse(["--gpu", "--help"])


def test_a_bare_alias_gives_way_to_the_flag_it_stands_for() -> None:
    assert given("--device", "cuda", "--no-accel") == {"device": "cuda"}
    assert refused(parse, ["--no-accel=1"]) == "--no-accel takes no value: it stands for --device cpu"


def test_numbers_compare_as_numbers() -> None:
    assert given("--mixup-prob", "1.0", "--vflip=0.", "--ratio", "0.75", "1.333333", "--model-dtype=Float32") == {}
    assert "(crops are 3/4 to 4/3 wide)" in refused(parse, ["--ratio", "0.75"])


def test_a_run_says_once_what_has_no_effect(run, capsys) -> None:
    flags = "--gpu 0 --dist-url env:// --validation-batch-size 8 --gpu 0 --stop-after-steps 1"
    assert run(*flags.split()) == 0
    out = capsys.readouterr().out
    assert out.count("--gpu has no effect here") == 1
    assert out.count("--dist-url has no effect here") == 1
    assert run("--crop-pct", "0.9") == 2
    assert capsys.readouterr().err.startswith(
        "error: --crop-pct has no equivalent here; the nearest flag is --val-resize"
    )

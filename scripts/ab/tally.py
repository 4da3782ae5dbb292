"""How many rounds and steps were timed in fact: a short epoch or an early end leaves fewer than were asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ab.process import steady
from ab.verdict import done_by_arm


def told_steps(content: Mapping[str, Any]) -> str:
    """Rounds, steps and what was left out of them, for the report."""
    settings, runs = content["settings"], _runs(content)
    rounds = _told_rounds(content)
    if not runs:
        return rounds
    timed = _span(len(steady(run)["seconds"]) for run in runs)
    if settings.get("in_process"):
        what = "forward passes in eval mode" if settings["mode"] == "inference" else "training steps"
        left_out = max(1, settings["timing_warmup_steps"])
        return (
            f"one process: {rounds} of {timed} {what} of each arm, the arms taking turns step by step in alternating order, "
            f"after {left_out} left out"
        )
    left_out = _span(sum(epoch["warmup_steps"] for epoch in run["epochs"]) for run in runs)
    whole = f"whole epochs ({settings['epochs']}), " if settings["epochs"] else ""
    return (
        f"{rounds} of fresh processes in alternating order, {whole}{timed} timed steps each after {left_out} left out"
    )


def few_steps(content: Mapping[str, Any]) -> str | None:
    """A sentence where runs left out less warm-up than was asked for, or timed fewer steps by more than one smaller last
    batch an epoch."""
    settings, runs = content["settings"], _runs(content)
    if not runs or settings["epochs"]:
        return None
    fewest = min(runs, key=lambda run: len(steady(run)["seconds"]))
    timed = len(steady(fewest)["seconds"])
    if timed + len(fewest["epochs"]) >= settings["steps"]:
        return _short_warmup(settings, runs)
    return (
        f"each run timed only {timed} steps where {settings['steps']} were asked for: an epoch has too few; take more images "
        "(--synthetic-size), a smaller batch or fewer --steps and --timing-warmup-steps"
    )


def _short_warmup(settings: Mapping[str, Any], runs: Iterable[Mapping[str, Any]]) -> str | None:
    asked = settings["timing_warmup_steps"]
    left_out = min(epoch["warmup_steps"] for run in runs for epoch in run["epochs"])
    if left_out >= asked or settings.get("in_process"):
        return None
    return (
        f"runs left out only {left_out} step{'' if left_out == 1 else 's'} where --timing-warmup-steps {asked} were asked for: an epoch "
        "has fewer than twice as many steps; take more images (--synthetic-size), a smaller batch or fewer warm-up steps"
    )


def _runs(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [run for found in done_by_arm(content).values() for run in found.values()]


def _told_rounds(content: Mapping[str, Any]) -> str:
    asked = content["settings"]["rounds"]
    ended = min(len(found) for found in done_by_arm(content).values())
    if not ended:
        return f"no round has ended of {asked}"
    if ended < asked:
        return f"{ended} of {asked} rounds"
    return f"{ended} round{'s' if ended > 1 else ''}"


def _span(counts: Iterable[int]) -> str:
    found = list(counts)
    low, high = min(found), max(found)
    return str(low) if low == high else f"{low} to {high}"

"""Whether two arms compute the same: losses of the first steps, within what their precision allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ab.arms import changes_mathematics

FLOAT32, HALF = 1e-4, 2e-2
COMPARED = 5
LATER = 10.0  # steps 2 to 5 follow updates that differ a little already


@dataclass(frozen=True)
class Results:
    """``kind``: equal, different, not comparable or not applicable; ``text``: what was found."""

    kind: str
    text: str


def tolerance(resolved: Mapping[str, Any]) -> float:
    """Relative tolerance of a run's first loss. TF32 rounds inputs to half precision's ten bits."""
    if resolved.get("opt_level") != "O0" or (resolved.get("device") == "cuda" and resolved.get("tf32")):
        return HALF
    return FLOAT32


def compare_results(
    baseline: Sequence[Mapping[str, Any]], candidate: Sequence[Mapping[str, Any]], processes: int = 1
) -> Results:
    """Runs paired by round, same seed and order of data; the worst pair counts."""
    first, second = baseline[0]["resolved"], candidate[0]["resolved"]
    changed = changes_mathematics(first, second, processes)
    if changed:
        return Results("not applicable", f"not applicable: {', '.join(changed)} differ, so the losses are meant to")
    bound = max(tolerance(first), tolerance(second))
    worst, skipped, compared = 0.0, 0, 0
    for one, other in zip(baseline, candidate, strict=True):
        skipped = max(skipped, one["skipped_steps"], other["skipped_steps"])
        pairs = list(zip(one["losses"], other["losses"], strict=False))[: 1 if skipped else COMPARED]
        for step, (left, right) in enumerate(pairs):
            if left is None and right is None:
                return Results(
                    "not comparable", f"not comparable: the loss of step {step + 1} is not finite in either arm"
                )
            apart = relative(left, right)
            allowed = bound * (LATER if step else 1.0)
            if apart > allowed:
                return Results(
                    "different",
                    f"the loss of step {step + 1} is {_shown(left)} and {_shown(right)}, {apart:.2g} apart (relative), {allowed:g} allowed",
                )
            worst, compared = max(worst, apart), max(compared, step + 1)
    if skipped:
        return Results(
            "not comparable", f"first loss within {bound:g}; after it not comparable: {skipped} steps were skipped"
        )
    if not compared:
        return Results("not comparable", "not comparable: no loss was recorded")
    return Results("equal", f"losses of the first {compared} steps at most {worst:.2g} apart (relative; {bound:g} allowed, "
                            f"{LATER * bound:g} from step 2)")  # fmt: skip


def relative(left: float | None, right: float | None) -> float:
    """Distance over the larger magnitude; infinite where one of them is not finite."""
    if left is None or right is None:
        return float("inf")
    return abs(left - right) / max(abs(left), abs(right), 1e-12)


def _shown(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.6f}"

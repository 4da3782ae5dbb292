"""Whether two arms compute the same: losses of the first steps within what their precision allows, and the ends of whole epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ab.arms import changes_mathematics
from ab.finals import compare_finals, relative, shown

FLOAT32, HALF = 1e-4, 2e-2
COMPARED = 5
LATER = 10.0  # steps 2 to 5 follow updates that differ a little already
_PERHAPS_ROUNDING = "; the first step agrees, so rounding that grows at this learning rate may be the cause: repeat with a smaller --lr to tell"


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
    baseline: Sequence[Mapping[str, Any]],
    candidate: Sequence[Mapping[str, Any]],
    processes: int = 1,
    training: bool = True,
) -> Results:
    """Runs paired by round, same seed and order of data; the worst pair counts. ``training``: weights change from step to
    step."""
    changed = changes_mathematics(baseline[0]["resolved"], candidate[0]["resolved"], processes)
    if changed:
        verb = "differs" if len(changed) == 1 else "differ"
        return Results("not applicable", f"not applicable: {', '.join(changed)} {verb}, so the losses are meant to")
    found = _losses_and_ends(baseline, candidate, training)
    if found.kind != "different":
        return found
    drawing, why = _drawn_elsewhere(baseline[0], candidate[0])
    if drawing:
        return Results(
            "not comparable",
            f"not comparable: {', '.join(drawing)} draws other random numbers {why}, so the losses part ({found.text}); the same "
            "model without dropout and stochastic depth would tell",
        )
    dropouts = _dropouts_of_another_order(baseline[0], candidate[0])
    if dropouts:
        return Results(
            "not comparable",
            f"not comparable: {', '.join(dropouts)} draws a dropout mask in the order of memory, which is another one in each "
            f"format, so the losses part ({found.text}); scripts/check_parity.py compares the formats with one mask",
        )
    return found


def _drawn_elsewhere(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[list[str], str]:
    """Modules whose random numbers come from another generator in one run than in the other, and why. A compiled run
    names none itself."""
    first, second = one["resolved"], other["resolved"]
    drawing = list(one.get("drawing_modules") or other.get("drawing_modules") or [])
    if first.get("device") != second.get("device"):
        return drawing, "on another device"
    return (drawing, "under --compile") if first.get("compile") != second.get("compile") else ([], "")


def _dropouts_of_another_order(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Modules that drop other elements in one run than in the other, as the runs differ in memory format."""
    if one["resolved"].get("channels_last") == other["resolved"].get("channels_last"):
        return []
    return list(one.get("ordered_dropout", []))


def _losses_and_ends(
    baseline: Sequence[Mapping[str, Any]], candidate: Sequence[Mapping[str, Any]], training: bool
) -> Results:
    first = _first_steps(baseline, candidate, _PERHAPS_ROUNDING if training else "")
    kind, text = compare_finals(baseline, candidate)
    # The average and the raw weights are scored differently, on purpose.
    of_another_model = baseline[0]["resolved"].get("ema_eval") != candidate[0]["resolved"].get("ema_eval")
    if not kind or of_another_model or first.kind == "different":
        return first
    if kind == "different":
        return Results("different", text + _PERHAPS_ROUNDING)
    return Results(first.kind if kind == "equal" else kind, f"{first.text}; {text}")


def _first_steps(baseline: Sequence[Mapping[str, Any]], candidate: Sequence[Mapping[str, Any]], hint: str) -> Results:
    """``hint``: what is added where a later step parts and the first does not."""
    bound = max(tolerance(baseline[0]["resolved"]), tolerance(candidate[0]["resolved"]))
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
                    f"the loss of step {step + 1} is {shown(left, 6)} and {shown(right, 6)}, {apart:.2g} apart (relative), "
                    f"{allowed:g} allowed{hint if step else ''}",
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

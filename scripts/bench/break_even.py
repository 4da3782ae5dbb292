"""How many convolutions pay for one conversion of their input."""

from __future__ import annotations

import math
from typing import Any

from both_formats import CHANNELS_LAST, CONTIGUOUS
from conversions import TO_CONTIGUOUS, TO_LAST, ShapeCosts
from layer_arms import LayerResult


def break_even(costs: ShapeCosts, result: LayerResult) -> dict[str, Any]:
    """What a conversion of the input to the better format takes and how many such convolutions pay for it; plain types.

    In training a conversion costs its own copy and, in the backward pass, that of the gradient the other way; an input
    without gradient, and a forward pass alone, cost the first copy only. ``convolutions`` is None where the formats
    differ by no more than their spread: then no number of convolutions pays.
    """
    assert result.times is not None
    to, gain = None, None
    if result.verdict in ("faster", "slower"):
        to = CHANNELS_LAST if result.verdict == "faster" else CONTIGUOUS
        gain = abs(result.times.difference(CHANNELS_LAST, CONTIGUOUS))
    first, back = (TO_CONTIGUOUS, TO_LAST) if to == CONTIGUOUS else (TO_LAST, TO_CONTIGUOUS)
    cost = costs.cost_of(first).median + (costs.cost_of(back).median if _has_gradient(result) else 0.0)
    return {
        "convolution": result.case.module,
        "modules": result.case.names,
        "cliffs": result.cliffs,
        "seconds": {name: result.times.median(name) for name in (CONTIGUOUS, CHANNELS_LAST)},
        "factor": result.factor.median,
        "factor_spread": list(result.factor.spread),
        "better": to,
        "gain_s": gain,
        "conversion_s": cost,
        "with_gradient": _has_gradient(result),
        "convolutions": math.ceil(cost / gain) if gain else None,
    }


def _has_gradient(result: LayerResult) -> bool:
    (spec,) = result.case.inputs[0]
    return bool(spec.requires_grad and result.case.grad)


def line(found: dict[str, Any]) -> str:
    low, high = found["factor_spread"]
    head = f"  {found['modules'][0]} {found['convolution']}: factor {found['factor']:.2f} ({low:.2f} to {high:.2f})"
    if found["better"] is None:
        return f"{head}: no difference beyond its spread, so no conversion pays"
    copies = "two copies, input and gradient" if found["with_gradient"] else "one copy"
    count = found["convolutions"]
    return (
        f"{head}: {found['better']} saves {1e3 * found['gain_s']:.4g} ms; a conversion to it ({copies}) takes "
        f"{1e3 * found['conversion_s']:.4g} ms, paid by {count} such convolution{'s' if count > 1 else ''}"
    )

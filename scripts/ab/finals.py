"""Whether two arms that trained whole epochs ended alike: accuracy within what chance allows, losses finite in both.

Rounding that differs grows over hundreds of steps until two correct runs are like two seeds, so their final losses have no
tolerance that would hold: they are told, with their distance. Accuracies are taken as two independent samples of the N
validation images. They differ where the pooled two-proportion z test says so at 99.9 %, with Yates's correction of half an
image an arm (J. Fleiss, B. Levin and M. Paik, Statistical Methods for Rates and Proportions, third edition, section 3.2).
That both arms see the same images makes chance smaller than the test takes it to be; that few epochs at a large learning
rate end anywhere makes it larger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Z999 = 3.2905  # the normal distribution's quantile 0.9995, for 99.9 % on two sides
NAMES = {"train_loss": "final training loss", "val_loss": "final validation loss", "val_acc1": "final accuracy"}
Final = Mapping[str, Any]


def compare_finals(baseline: Sequence[Mapping[str, Any]], candidate: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Runs paired by round to a kind (equal, different, not comparable) and a text; both empty without whole epochs.

    The pair whose accuracies are farthest apart is told and counts.
    """
    ends = [(one["final"], other["final"]) for one, other in zip(baseline, candidate, strict=True)]
    ends = [(left, right) for left, right in ends if left and right]
    if not ends:
        return "", ""
    for left, right in ends:
        for key, name in NAMES.items():
            if (left[key] is None) != (right[key] is None):
                return "different", f"the {name} is {shown(left[key])} and {shown(right[key])}"
    left, right = max(ends, key=lambda pair: _accuracy_gap(*pair))
    losses = ", ".join(_told_loss(name, left[key], right[key]) for key, name in list(NAMES.items())[:2])
    if left["train_loss"] is None:
        return "not comparable", losses
    images = _images(left, right)
    if not images:
        return "equal", losses
    gap, allowed = _accuracy_gap(left, right), 100 * chance(left["val_acc1"] / 100, right["val_acc1"] / 100, images)
    values = f"{left['val_acc1']:.2f} % and {right['val_acc1']:.2f} %"
    if gap > allowed:
        return "different", (
            f"the accuracy of {images} validation images is {values}, more apart than the {allowed:.2f} points that chance "
            f"explains at 99.9 %; {losses}"
        )
    return "equal", f"accuracy of {images} validation images {values} (chance explains {allowed:.2f} points); {losses}"


def chance(first: float, second: float, images: int) -> float:
    """How far apart two shares (0 to 1) of ``images`` each may be by chance at 99.9 %."""
    share = (first + second) / 2
    return Z999 * math.sqrt(2 * share * (1 - share) / images) + 1 / images


def relative(left: float | None, right: float | None) -> float:
    """Distance over the larger magnitude; infinite where one of them is not finite."""
    if left is None or right is None:
        return math.inf
    return abs(left - right) / max(abs(left), abs(right), 1e-12)


def shown(value: float | None, digits: int = 4) -> str:
    return "not finite" if value is None else f"{value:.{digits}f}"


def _accuracy_gap(left: Final, right: Final) -> float:
    """Percentage points; 0 where there is nothing to compare."""
    return abs(left["val_acc1"] - right["val_acc1"]) if _images(left, right) else 0.0


def _images(left: Final, right: Final) -> int:
    """Validation images behind both accuracies; 0 where a record does not say, or they are not the same number."""
    images = left.get("val_images")
    known = images and images == right.get("val_images") and left["val_acc1"] is not None
    return int(images) if images and known else 0


def _told_loss(name: str, left: float | None, right: float | None) -> str:
    if left is None:
        return f"{name} not finite in either arm"
    return f"{name} {shown(left)} and {shown(right)} ({relative(left, right):.2g} apart, relative)"

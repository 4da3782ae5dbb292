"""What a checkpoint of ours is made of, and which parts of a file that says it is one are of another kind.

A file can be read safely and still hold anything: it is looked at whole before a run is brought to its state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_SUMS = 4


def _count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _sums(value: Any) -> bool:
    return isinstance(value, list) and len(value) == _SUMS and all(map(_number, value))


def _all(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(kind, value))


def _settings(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def _optimizer(value: Any) -> bool:
    return isinstance(value, dict) and all(_count(key) and isinstance(entry, dict) for key, entry in value.items())


def _generator(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.uint8 and value.dim() == 1


def _generators(value: Any) -> bool:
    return isinstance(value, dict) and _generator(value.get("cpu")) and all(map(_generator, value.values()))


def _contents(value: Any) -> bool:
    return isinstance(value, dict) and all(_settings(value.get(split)) for split in ("train", "val"))


def _average(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and isinstance(value.get("state_dict"), dict) and _count(value.get("updates"))
    )


def _steps(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_count, value))


_NEEDED: dict[str, Callable[[Any], bool]] = {
    "format": _count,
    "config": _settings,
    "resolved": lambda value: _settings(value) and _count(value.get("num_classes")),
    "optimizer": _optimizer,
    "precision": _settings,
    "rng": _all(_generators),
    "epoch": _count,
    "step": _count,
}
# Files of earlier versions lack some of these.
_POSSIBLE: dict[str, Callable[[Any], bool]] = {
    "classes": _all(lambda name: isinstance(name, str)),
    "global_batch_size": _count,
    "world_size": _count,
    "images_seen": _count,
    "samples_in_epoch": _count,
    "best_acc1": _number,
    "best_epoch": lambda value: isinstance(value, int),
    "skipped_steps": _count,
    "bad_row": _count,
    "rewinds": _count,
    "left_out": _all(_steps),
    "epoch_sums": _sums,
    "window_sums": _all(_sums),
    "ema": _average,
    "data": _contents,
}


def wrong_parts(content: dict[str, Any]) -> list[str]:
    """Names of the parts that lack or are not what this script writes."""
    needed = [name for name, fits in _NEEDED.items() if not fits(content.get(name))]
    return needed + [name for name, fits in _POSSIBLE.items() if name in content and not fits(content[name])]

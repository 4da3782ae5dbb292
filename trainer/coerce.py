"""A flag's text or a YAML value -> the type that its TrainConfig field asks for. Imports no torch."""

from __future__ import annotations

import difflib
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.checks import flag_of
from trainer.config import TrainConfig
from trainer.errors import UserError

TRUE_WORDS = ("true", "1", "yes")
FALSE_WORDS = ("false", "0", "no")
# "Not set", for keys that may be: brings back the default of the start over a file's or a checkpoint's value.
NONE_WORDS = ("None", "null")
# What torchvision's reference and timm call our two schedules.
PEER_SCHEDULES = {"multisteplr": "step", "multistep": "step", "steplr": "step", "cosineannealinglr": "cosine"}

PEER_OPTIMIZERS = {"sgd_nesterov": "nesterov"}

_HINTS = typing.get_type_hints(TrainConfig)
_LOWER_CASE = (
    "interpolation", "amp_dtype", "lr_schedule", "lr_scaling", "device", "cpu_heap", "auto_augment", "exif_orientation", "bad_images", "check_data", "opt",
)  # fmt: skip
_BIGGEST = 2**63  # a whole number beyond it fits no tensor, seed or counter
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80
_REPR.maxlevel = 3


def coerce(key: str, value: Any) -> Any:
    """``value`` as the type that ``key`` asks for; ``UserError`` if it is none."""
    hint = _HINTS[key]
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None or (may_be_none(key) and value in NONE_WORDS and key != "data_dir"):
        if may_be_none(key):
            return None
        raise UserError(f"{flag_of(key)} needs {_kind(key, options)}, not an empty value", True)
    for option in options:
        try:
            return _canonical(key, _coerce_to(option, value))
        except (TypeError, ValueError, OverflowError):
            continue
    raise UserError(f"{flag_of(key)} needs {_kind(key, options)}, got {shown(value)}", True)


def typed(raw: Mapping[str, Any], below: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Typed values of one source of settings; ``below`` is the source that this one wins over."""
    values = {key: coerce(key, value) for key, value in raw.items()}
    if str(raw.get("lr_schedule")).lower() == "steplr" and not values.get("lr_milestones"):
        # torchvision's reference drops every 30 epochs unless told.
        values.setdefault("lr_step_size", (below or {}).get("lr_step_size") or 30.0)
    return values


def is_bool(key: str) -> bool:
    """Whether the bare flag means true; some of these take ``auto`` too."""
    return _HINTS[key] is bool or bool in typing.get_args(_HINTS[key])


def may_be_auto(key: str) -> bool:
    """Whether a flag of true or false takes ``auto`` too."""
    return is_bool(key) and str in typing.get_args(_HINTS[key])


def may_be_none(key: str) -> bool:
    return type(None) in typing.get_args(_HINTS[key])


def shown(value: Any) -> str:
    """What a user gave, quoted, on one line and of a bearable length."""
    try:
        return _REPR.repr(value)
    except ValueError:  # Python writes no whole number of more than 4300 digits
        return "a number of thousands of digits"


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name most like ``name``, as the end of a sentence."""
    matches = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; the nearest known one is {matches[0]}" if matches else "; see train.py --help"


def _coerce_to(option: Any, value: Any) -> Any:
    if option is bool:
        return _coerce_bool(value)
    if option is str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError
        return value
    if option in (int, float):
        return _coerce_number(option, value)
    if typing.get_origin(option) is tuple:
        return _coerce_tuple(option, value)
    raise TypeError


def _coerce_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower() if isinstance(value, str | int) else ""
    if word not in TRUE_WORDS + FALSE_WORDS:
        raise ValueError
    return word in TRUE_WORDS


def _coerce_number(option: type[int] | type[float], value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    if option is float:
        return float(value)
    number = int(value)
    if (isinstance(value, float) and number != value) or abs(number) >= _BIGGEST:
        raise ValueError
    return number


def _coerce_tuple(option: Any, value: Any) -> tuple[float, ...]:
    inner = typing.get_args(option)
    open_ended = inner[-1] is Ellipsis
    if isinstance(value, str):
        items: list[Any] = value.replace(",", " ").replace(":", " ").split()
    elif isinstance(value, list | tuple):
        items = list(value)
    else:
        items = [value]
    if not items or (not open_ended and len(items) != len(inner)):
        raise ValueError
    return tuple(float(_coerce_number(float, item)) for item in items)


def _canonical(key: str, value: Any) -> Any:
    if key == "loss_scale" and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            if value.lower() != "dynamic":
                raise
        return "dynamic"
    if may_be_auto(key) and isinstance(value, str):
        if value.lower() != "auto":
            raise ValueError
        return "auto"
    if key == "opt_level":
        return value.upper()
    if key in _LOWER_CASE:
        value = value.lower()
    if key == "lr_schedule":
        return PEER_SCHEDULES.get(value, value)
    if key == "opt":
        return PEER_OPTIMIZERS.get(value, value)
    if key == "prof" and value < 0:
        return None  # main_amp's way of saying off
    return value


def _kind(key: str, options: tuple[Any, ...]) -> str:
    if key == "loss_scale":
        return "a number or 'dynamic'"
    if may_be_auto(key):
        return "true, false or 'auto'"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    option = options[0]
    if typing.get_origin(option) is not tuple:
        return names[option]
    if key == "progressive":
        return "pairs such as 128:0.0,160:0.5"
    inner = typing.get_args(option)
    return "numbers" if inner[-1] is Ellipsis else f"{len(inner)} numbers"

"""Text and YAML values to typed settings: what is accepted, and that all else is one sentence."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pytest

from trainer.checks import flag_of
from trainer.coerce import coerce, is_bool, shown
from trainer.config import DEFAULTS, KEYS
from trainer.errors import UserError

ACCEPTED: list[tuple[str, Any, Any]] = [
    ("batch_size", "32", 32),
    ("batch_size", 32, 32),
    ("batch_size", 32.0, 32),
    ("lr", "1e-4", 1e-4),
    ("lr", 1, 1.0),
    ("lr", "nan", math.nan),  # typed here, refused by TrainConfig
    ("mean", [0.1, "0.2", 1], (0.1, 0.2, 1.0)),
    ("mean", "0.1 0.2 0.3", (0.1, 0.2, 0.3)),
    ("crop_scale", "0.5,1", (0.5, 1.0)),
    ("lr_milestones", "30,60,80", (30.0, 60.0, 80.0)),
    ("lr_milestones", [30], (30.0,)),
    ("lr_milestones", 30, (30.0,)),
    ("opt_level", "o1", "O1"),
    ("amp_dtype", "BFloat16", "bfloat16"),
    ("device", "CPU", "cpu"),
    ("lr_schedule", "MultiStepLR", "step"),
    ("lr_schedule", "multistep", "step"),
    ("lr_schedule", "steplr", "step"),
    ("lr_schedule", "cosineannealinglr", "cosine"),
    ("lr_schedule", "Cosine", "cosine"),
    ("lr_scaling", "None", "none"),
    ("loss_scale", "dynamic", "dynamic"),
    ("loss_scale", "128.0", 128.0),
    ("loss_scale", 128, 128.0),
    ("keep_batchnorm_fp32", "True", True),
    ("keep_batchnorm_fp32", "False", False),
    ("prof", "-1", None),  # main_amp's default: off
    ("prof", -7, None),
    ("prof", "0", 0),
    ("data_dir", "None", "None"),  # a folder may be called that
    ("data_dir", "null", "null"),
]
NO_WHOLE_NUMBER: list[Any] = [
    "", " ", "x", "1.5", "1e3", "nan", "inf", "0x10", 1.5, math.nan, math.inf, True, [1], [], {}, {"a": 1}, b"1",
    datetime.date(2026, 1, 1), "9" * 5000, "9" * 30, 10**30, 1 << 20000, -(2**70),
]  # fmt: skip
NO_NUMBER: list[Any] = [
    "", "x", "1,5", "0.1 0.2", "--", True, False, [0.1], {}, {1: 2}, b"0.1", datetime.date(2026, 1, 1), 10**400,
]  # fmt: skip
NO_TEXT: list[Any] = ["", "  ", 5, 0.1, True, ["a"], {"a": "b"}, datetime.date(2026, 1, 1), 1 << 20000]
NO_BOOL: list[Any] = ["", "maybe", "on", "off", "t", "-1", "2", 2, 1.0, [], ["true"], {"true": 1}, 1 << 20000]
REFUSED: list[tuple[str, list[Any]]] = [
    ("batch_size", NO_WHOLE_NUMBER),
    ("seed", NO_WHOLE_NUMBER),
    ("prof", NO_WHOLE_NUMBER),
    ("lr", NO_NUMBER),
    ("clip_grad_norm", NO_NUMBER),
    ("loss_scale", [*NO_NUMBER, "static", "dynamically"]),
    ("arch", NO_TEXT),
    ("data_dir", NO_TEXT),
    ("resume", NO_TEXT),
    ("opt_level", NO_TEXT),
    ("lr_schedule", NO_TEXT),
    ("channels_last", NO_BOOL),
    ("keep_batchnorm_fp32", NO_BOOL),
    ("mean", [[0.1], [], "", 0.1, "0.1 0.2", [1, 2, 3, 4], [[1, 2, 3]], {0: 1, 1: 2, 2: 3}, [1, 2, None]]),
    ("lr_milestones", [[], "", ",", "x", [None], [True], [[30]], {30: 1}, [10**400], True]),
]


@pytest.mark.parametrize(("key", "value", "typed"), ACCEPTED, ids=shown)
def test_accepted_value_gets_its_type(key: str, value: Any, typed: Any) -> None:
    result = coerce(key, value)
    assert type(result) is type(typed)
    assert result == typed or (math.isnan(typed) and math.isnan(result))


@pytest.mark.parametrize(("key", "values"), REFUSED, ids=[key for key, _ in REFUSED])
def test_refused_value_is_one_sentence(key: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UserError) as failed:
            coerce(key, value)
        message = str(failed.value)
        assert message.startswith(f"{flag_of(key)} needs ")
        assert len(message.splitlines()) == 1
        assert len(message) < 250


@pytest.mark.parametrize("key", KEYS)
def test_none_is_not_set_where_the_default_is(key: str) -> None:
    if DEFAULTS[key] is None:
        assert coerce(key, None) is None
        if key != "data_dir":
            assert coerce(key, "None") is None
            assert coerce(key, "null") is None
    else:
        with pytest.raises(UserError, match="not an empty value"):
            coerce(key, None)


def test_bool_spellings() -> None:
    keys = [key for key in KEYS if is_bool(key)]
    assert "channels_last" in keys
    assert "keep_batchnorm_fp32" in keys
    for value in ("true", "True", "TRUE", "1", "yes", "Yes", 1, True):
        assert all(coerce(key, value) is True for key in keys)
    for value in ("false", "False", "FALSE", "0", "no", "NO", 0, False):
        assert all(coerce(key, value) is False for key in keys)


@pytest.mark.parametrize("key", KEYS)
def test_default_and_coerced_default_are_equal(key: str) -> None:
    assert coerce(key, DEFAULTS[key]) == DEFAULTS[key]
    if isinstance(DEFAULTS[key], tuple):
        assert coerce(key, list(DEFAULTS[key])) == DEFAULTS[key]


def test_what_the_user_gave_is_shown_on_one_short_line() -> None:
    nested: list[Any] = []
    nested.append(nested)
    bomb: list[Any] = ["x"]
    for _ in range(40):
        bomb = [bomb] * 9
    for value in ("a\nb\r\u2028c", "x" * 10**6, 1 << 20000, [1 << 20000], nested, bomb, {"k" * 999: bomb}, "\udcff"):
        text = shown(value)
        assert len(text.splitlines()) == 1
        assert len(text) < 2000
        text.encode()

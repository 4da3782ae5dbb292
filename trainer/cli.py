"""Command line and YAML file -> TrainConfig. Imports no torch, so ``--help`` answers at once.

Command line over file over default. Unknown keys, wrong types and impossible pairs raise ``UserError``.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trainer.checks import flag_of
from trainer.coerce import FALSE_WORDS, NONE_WORDS, TRUE_WORDS, is_bool, may_be_auto, may_be_none, nearest, shown, typed
from trainer.config import DEFAULTS, KEYS, PER_START, TrainConfig
from trainer.config_file import read_config_file
from trainer.errors import UserError
from trainer.flags import GROUPS, ROWS, Row
from trainer.peer_flags import translate

_NUMBER = r"-?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?"
_NUMBERS = re.compile(rf"{_NUMBER}(,{_NUMBER})*,?", re.IGNORECASE)
_FLAGS = tuple(flag for row in ROWS for flag in row.flags)
_PATHS = (
    "data_dir",
    "val_labels",
    "class_map",
    "train_shards",
    "val_shards",
)  # absolute, so that a run resumed from elsewhere finds them
_ANY = object()
# What a given setting excludes: it drops those that come from below (file under command line, checkpoint under both).
_EXCLUDES: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("data_dir", _ANY, ("synthetic", "train_shards", "val_shards")),
    ("train_shards", _ANY, ("synthetic", "data_dir", "val_labels")),
    ("synthetic", _ANY, ("data_dir", "val_labels", "class_map", "train_shards", "val_shards")),
    ("weights", _ANY, ("pretrained",)),
    ("pretrained", _ANY, ("weights",)),
    ("global_batch_size", _ANY, ("batch_size",)),
    ("batch_size", _ANY, ("global_batch_size",)),
    ("lr_milestones", _ANY, ("lr_step_size",)),
    ("lr_step_size", _ANY, ("lr_milestones",)),
    ("lr_schedule", "cosine", ("lr_milestones", "lr_step_size")),
    ("opt_level", "O1", ("keep_batchnorm_fp32",)),
    ("amp_dtype", "bfloat16", ("loss_scale",)),
)


@dataclass(frozen=True)
class Request:
    """A parsed command line: the settings, which of them were given (not defaults), and lines for the log."""

    config: TrainConfig
    given: Mapping[str, Any]
    notices: Sequence[str] = ()


def parse(argv: Sequence[str] | None = None) -> Request:
    """Parse ``argv`` (default: the process's). Raises UserError; ``--help`` raises SystemExit(0)."""
    tokens, notices = translate(sys.argv[1:] if argv is None else argv, _FLAGS)
    tokens, folders = _bind_optional_values(tokens)
    namespace, extras = build_parser().parse_known_args(tokens)
    flags = {key: value for key, value in vars(namespace).items() if value is not None}
    config_file = flags.pop("config", None)
    flags.pop("local_rank", None)
    _take_positional(flags, extras, folders)
    if "batch_size" in flags and "global_batch_size" in flags:
        raise UserError("--batch-size is of one process and --global-batch-size of all: give one of them", True)
    from_file = {} if config_file is None else read_config_file(config_file)
    given = _overlay(from_file, typed(flags, from_file))
    config = _build(given)
    given.update({key: getattr(config, key) for key in _PATHS if key in given})
    return Request(config, given, notices)


def merge_with_checkpoint(given: Mapping[str, Any], saved: Mapping[str, Any]) -> TrainConfig:
    """A resumed run's settings: what is given now wins, the checkpoint's value stands otherwise."""
    inherited = typed({key: value for key, value in saved.items() if key in KEYS and key not in PER_START})
    return _build(_overlay(inherited, given))


def build_parser() -> argparse.ArgumentParser:
    """The parser, flags grouped by what they act on; every value stays text until ``coerce`` types it."""
    parser = _Parser(
        prog="train.py",
        usage="train.py [flags] [DIR]",
        description="Channels-last, mixed-precision ImageNet training on native PyTorch.",
        epilog="DIR holds train/ and val/ with one folder a class; without it the run trains on made-up images.",
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    for title in GROUPS:
        group = parser.add_argument_group(title)
        for row in (row for row in ROWS if row.group == title):
            _add_row(group, row)
    return parser


def _add_row(group: argparse._ArgumentGroup, row: Row) -> None:
    options: dict[str, Any] = {"dest": row.key, "default": None, "help": row.help_text(DEFAULTS.get(row.key))}
    if row.const is not None:
        group.add_argument(*row.flags, action="store_const", const=row.const, **options)
    elif row.key in KEYS and is_bool(row.key):
        group.add_argument(*row.flags, nargs="?", const="true", metavar="BOOL", **options)
    elif row.optional is not None:
        group.add_argument(*row.flags, nargs="?", const=row.optional[0], metavar=row.metavar[1:-1], **options)
    else:
        nargs = len(row.metavar) if isinstance(row.metavar, tuple) else None
        group.add_argument(*row.flags, nargs=nargs, metavar=row.metavar, **options)


class _HelpFormatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=118)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message, on_every_rank=True)


def _bind_optional_values(tokens: list[str]) -> tuple[list[str], list[str]]:
    """Bind each optional value to its flag with ``=``, so that none swallows a following DIR.

    Also returns what follows a ``--``: folders, whatever they look like.
    """
    bools = {flag: row for row in ROWS if row.key in KEYS and (is_bool(row.key) or row.optional) for flag in row.flags}
    lists = {flag for row in ROWS if row.many for flag in row.flags}
    bound: list[str] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if token == "--":
            return bound, tokens[position:]
        if token in bools:
            row = bools[token]
            if position < len(tokens) and _belongs_to(row, tokens[position]):
                bound.append(f"{flag_of(row.key)}={tokens[position]}")
                position += 1
            elif row.optional:
                # First of all: `--model-ema-decay 0.99 --model-ema` means 0.99.
                bound.insert(0, f"{flag_of(row.key)}={row.optional[0]}")
            else:
                bound.append(f"{flag_of(row.key)}=true")
        elif token in lists:
            start = position
            if position < len(tokens) and tokens[position] in NONE_WORDS:
                position += 1
            while position < len(tokens) and _NUMBERS.fullmatch(tokens[position]):
                position += 1
            bound.append(f"{token}={','.join(tokens[start:position])}")
        elif _is_abbreviation(token):
            raise _unknown_flag(token)
        else:
            bound.append(token)
    return bound, []


def _belongs_to(row: Row, word: str) -> bool:
    """Whether ``word`` is the value of a flag that needs none."""
    if may_be_none(row.key) and word in NONE_WORDS:
        return True
    if row.optional:
        # What looks like a value is one, right or wrong; a folder of such a name is ./NAME.
        return (
            re.fullmatch(rf"{row.optional[1]}|-?[0-9]*\.?[0-9]+", word, re.IGNORECASE) is not None
            or word.lower() in FALSE_WORDS
        )
    return word.lower() in TRUE_WORDS + FALSE_WORDS or (may_be_auto(row.key) and word.lower() == "auto")


def _is_abbreviation(token: str) -> bool:
    """``-v``: argparse takes it for ``-vb`` even where abbreviations are off."""
    name = token.split("=")[0]
    single_dash = len(name) > 1 and name[0] == "-" and name[1] != "-"
    return single_dash and name not in _FLAGS and any(flag.startswith(name) for flag in _FLAGS)


def _take_positional(flags: dict[str, Any], extras: list[str], folders: list[str]) -> None:
    for extra in extras:
        if extra.startswith("-"):
            raise _unknown_flag(extra)
    folders = extras + folders
    if len(folders) > 1:
        names = " and ".join(map(shown, folders))
        raise UserError(f"one DIR at most, got {names}: is one of them a flag's value?", True)
    if folders:
        if "data_dir" in flags:
            both = f"{shown(folders[0])} and --data-dir {shown(flags['data_dir'])}"
            raise UserError(f"DIR is given twice: {both}", True)
        flags["data_dir"] = folders[0]


def _overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` over ``below``, less what ``above`` excludes."""
    dropped: set[str] = set()
    for key, value, excluded in _EXCLUDES:
        if above.get(key) and value in (_ANY, above[key]):
            dropped.update(excluded)
    return {**{key: value for key, value in below.items() if key not in dropped}, **above}


def _build(given: Mapping[str, Any]) -> TrainConfig:
    values = dict(given)
    for key in _PATHS:
        if values.get(key) and "://" not in values[key]:
            values[key] = os.path.abspath(os.path.expanduser(values[key]))
    if values.get("weights") and os.path.isfile(values["weights"]):
        values["weights"] = os.path.abspath(values["weights"])
    try:
        return TrainConfig(**values)
    except UserError as error:
        error.on_every_rank = True
        raise


def _unknown_flag(token: str) -> UserError:
    name = token.split("=")[0]
    written = name if name.isprintable() and len(name) <= 80 else shown(name)
    return UserError(f"unknown flag {written}{nearest(name, _FLAGS)}", True)

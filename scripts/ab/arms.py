"""Arms: their flags, which settings these name, and the check that nothing else differs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.checks import flag_of
from trainer.cli import parse
from trainer.config import MATCH_IGNORES
from trainer.errors import UserError

DEFAULT_ARMS = {"contiguous": "--channels-last false", "channels_last": "--channels-last true"}
MOST_ARMS = 8
# Settings that a named one brings with it when the start of the run resolves it.
_FOLLOWS: dict[str, tuple[str, ...]] = {
    "opt_level": ("amp_dtype", "keep_batchnorm_fp32", "loss_scale"),
    "amp_dtype": ("loss_scale",),
    "device": ("opt_level", "amp_dtype", "keep_batchnorm_fp32", "loss_scale", "cpu_heap"),
    "batch_size": ("val_batch_size",),
    "global_batch_size": ("batch_size", "val_batch_size"),
    "image_size": ("val_image_size", "val_resize"),
    "progressive": ("image_size", "val_image_size", "val_resize"),
    "val_image_size": ("val_resize",),
    "epochs": ("lr_milestones", "lr_warmup_epochs"),
    "lr_schedule": ("lr_milestones", "lr_warmup_epochs"),
    "lr_milestones": ("lr_warmup_epochs",),
    "lr_step_size": ("lr_milestones", "lr_warmup_epochs"),
    "arch": ("image_size", "val_image_size", "val_resize", "interpolation", "mean", "std"),
    "weights": ("image_size", "val_image_size", "val_resize", "interpolation", "mean", "std"),
    "pretrained": ("image_size", "val_image_size", "val_resize", "interpolation", "mean", "std"),
    "data_dir": ("synthetic", "num_classes", "epochs", "lr_milestones", "lr_warmup_epochs"),
    "train_shards": ("synthetic", "num_classes", "epochs", "lr_milestones", "lr_warmup_epochs"),
}
# Settings with which two runs are meant to have the same losses, whatever their speed.
_SAME_MATHEMATICS = {
    *MATCH_IGNORES, "channels_last", "opt_level", "amp_dtype", "keep_batchnorm_fp32", "loss_scale", "compile", "tf32",
    "deterministic", "val_batch_size", "model_ema", "ema_eval",
}  # fmt: skip
# Settings in which models side by side in one process may differ; the heap, threads, loader and batches are the process's.
IN_PROCESS = (
    "arch", "channels_last", "opt_level", "amp_dtype", "keep_batchnorm_fp32", "loss_scale", "micro_batch", "lr", "momentum",
    "weight_decay", "label_smoothing", "clip_grad_norm",
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """A name, the flags that set it apart, and the settings these name."""

    name: str
    flags: tuple[str, ...]
    named: tuple[str, ...]

    def follows(self) -> set[str]:
        """Every setting this arm may differ in."""
        found = set(self.named)
        for key in self.named:
            found.update(_FOLLOWS.get(key, ()))
        return found


def parse_arms(texts: Sequence[str] | Mapping[str, str], common: Sequence[str]) -> list[Arm]:
    """Arms from ``NAME: flags`` texts or from a mapping. Raises UserError, also where train.py would refuse the flags."""
    pairs = list(texts.items()) if isinstance(texts, Mapping) else [name_and_flags(text, "--arm") for text in texts]
    names = [name for name, _ in pairs]
    if not 2 <= len(pairs) <= MOST_ARMS:
        raise UserError(
            f"a comparison takes 2 to {MOST_ARMS} arms, got {len(pairs)}: give --arm 'NAME: flags' for each"
        )
    for name in names:
        _check_name(name, "an arm")
        if names.count(name) > 1:
            raise UserError(f"two arms are called {name!r}: give each a name of its own")
    return [_arm(name, text, common) for name, text in pairs]


def name_and_flags(text: str, option: str) -> tuple[str, str]:
    """Both parts of a ``NAME: flags`` text given to ``option``. Raises UserError."""
    name, colon, flags = text.partition(":")
    if not colon:
        raise UserError(f"{option} takes 'NAME: flags', got {text!r}")
    _check_name(name.strip(), option)
    return name.strip(), flags


def _check_name(name: str, owner: str) -> None:
    """Names become folders."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UserError(f"{owner}: a name is made of letters, digits, '.', '_' and '-', got {name!r}")


def _arm(name: str, text: str, common: Sequence[str]) -> Arm:
    try:
        flags = tuple(shlex.split(text or ""))
        request = parse([*common, *flags])
        base = parse(common)
    except (UserError, ValueError) as error:
        raise UserError(f"arm {name}: {error}") from None
    try:
        named = set(parse(flags).given)
    except UserError:  # flags that need one of the common flags beside them
        named = {key for key, value in request.given.items() if base.given.get(key, base) != value}
    return Arm(name, flags, tuple(sorted(named)))


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Keys in which two resolved configs differ."""
    return sorted(key for key in {*first, *second} if first.get(key) != second.get(key))


def check_resolved(arms: Sequence[Arm], resolved: Sequence[Mapping[str, Any]], ignored: Sequence[str] = ()) -> None:
    """Raise UserError where an arm differs from the first in a setting that neither names."""
    for arm, config in zip(arms[1:], resolved[1:], strict=True):
        allowed = arms[0].follows() | arm.follows() | set(ignored)
        stray = [key for key in differences(resolved[0], config) if key not in allowed]
        if stray:
            found = ", ".join(f"{flag_of(key)} ({resolved[0].get(key)} and {config.get(key)})" for key in stray)
            raise UserError(
                f"arms {arms[0].name} and {arm.name} also differ in {found}, which no arm names: set it for both after --"
            )


def check_in_process(arms: Sequence[Arm]) -> None:
    """Raise UserError where an arm names a setting that arms in one process share."""
    for arm in arms:
        for key in arm.named:
            if key not in IN_PROCESS:
                raise UserError(
                    f"arm {arm.name}: arms in one process share its heap, threads, loader and batches, so they cannot differ in "
                    f"{flag_of(key)}: drop --in-process, or give the flag after -- for all arms"
                )


def changes_mathematics(first: Mapping[str, Any], second: Mapping[str, Any], processes: int = 1) -> list[str]:
    """The settings, among those that differ, with which equal losses are not to be expected."""
    same = _SAME_MATHEMATICS | (set() if processes > 1 else {"sync_bn"})
    return [key for key in differences(first, second) if key not in same]

"""The command line of compare.py and the files below configs/ab/."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from trainer.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs" / "ab"
# Flags that the comparison itself gives to every run.
_OURS = ("--output-dir", "--resume", "--stop-after-steps", "--step-times", "--timing-warmup-steps")
_HELP = ("-h", "--help")
_LEAST = {"rounds": 1, "steps": 1, "timing_warmup_steps": 0, "nproc_per_node": 1, "epochs": 1}
# Options that stand alone: why, and what may still be given beside them.
_ALONE = {
    "resume": ("--resume goes on as it was asked", ("rounds", "max_minutes", "no_plots")),
    "redraw": ("--from runs nothing", ("output_dir", "no_plots")),
}
MODES = ("train", "inference")
_FILE_KEYS = ("title", "flags", "arms", "rounds", "timing_warmup_steps", "steps", "max_minutes", "without_cuda")


@dataclass
class Settings:
    """What is asked for; ``common``: flags of every run, ``arms``: name to flags, ``title``: of the report."""

    common: list[str] = field(default_factory=list)
    arms: dict[str, str] | list[str] | None = None
    title: str = ""
    rounds: int = 5
    steps: int = 20
    timing_warmup_steps: int = 5
    seconds_per_run: float | None = None
    max_minutes: float = 30.0
    epochs: int | None = None
    nproc_per_node: int = 1
    in_process: bool = False
    mode: str = "train"


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help lists the options; flags of train.py come after --)")


def build_parser() -> Parser:
    parser = Parser(
        prog="compare.py",
        usage="compare.py [options] -- [train.py flags] [DIR]",
        description="Measure arms of train.py against each other: rounds of fresh processes in alternating order, median steady "
        "step times, a ratio with a 95 % interval, the losses side by side, a verdict and a report.",
        epilog="--resume takes --rounds, --max-minutes and --no-plots beside it, --from takes --output-dir and --no-plots. "
        "Without --arm and --config the arms are contiguous (--channels-last false) and channels_last. Exit codes: 0 done; "
        "1 a run failed; 2 a mistake in flags; 3 the arms' results differ; 130 interrupted.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--arm", action="append", metavar="'NAME: flags'", help="an arm, the first is the baseline; 2 to 8 of them")
    add("--config", metavar="NAME", help="a comparison below configs/ab/, or a YAML file of that form")
    add("--rounds", type=int, metavar="N", help="runs of each arm (5)")
    add("--steps", type=int, metavar="N", help="timed steps of a run (20)")
    add("--timing-warmup-steps", type=int, metavar="N", help="steps before them that are left out (5)")
    add("--seconds-per-run", type=float, metavar="S", help="fewer steps where the slowest arm's would take longer")
    add("--max-minutes", type=float, metavar="M", help="stop before the first round if all would take longer (30)")
    add("--epochs", type=int, metavar="N", help="train this many whole epochs and compare final loss and accuracy too")
    add("--nproc-per-node", type=int, metavar="N", help="processes of a run, started by torchrun (1)")
    add(
        "--in-process",
        action="store_true",
        default=None,
        help="a quick look: all models in one process, alternating steps",
    )
    add(
        "--mode",
        choices=MODES,
        help="with --in-process, inference times forward passes of the model in eval mode (train)",
    )
    add("--no-plots", action="store_true", help="leave the pictures out of the report")
    add("--output-dir", metavar="DIR", help="where the report goes (runs/compare-<date-time>)")
    add("--resume", metavar="DIR", help="go on with an interrupted comparison")
    add("--from", dest="redraw", metavar="FILE", help="judge and draw a comparison.json again, without a run")
    return parser


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Ours before the first ``--``, train.py's after it."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def read_settings(args: argparse.Namespace, train_flags: Sequence[str]) -> Settings:
    """Defaults under the file of --config under the command line. Raises UserError."""
    settings = Settings()
    if args.config:
        _apply_file(settings, args.config)
    for item in fields(Settings):
        given = getattr(args, item.name, None)
        if given is not None and item.name not in ("common", "arms"):
            setattr(settings, item.name, given)
    settings.common += train_flags
    if args.arm:
        settings.arms = list(args.arm)
    check_numbers(vars(settings))
    _check_in_process(settings)
    arm_words = settings.arms.values() if isinstance(settings.arms, dict) else settings.arms or []
    for word in [*settings.common, *(word for text in arm_words for word in text.split())]:
        if word in _HELP:
            raise UserError(f"{word} after -- is train.py's: python train.py --help lists its flags")
        if word.split("=")[0] in _OURS:
            raise UserError(
                f"{word.split('=')[0]} is set by the comparison itself: give its own option before --, or drop it"
            )
    return settings


def check_alone(args: argparse.Namespace, train_flags: Sequence[str]) -> None:
    """Raise UserError where --resume or --from stands beside what it would ignore."""
    for option, (reason, allowed) in _ALONE.items():
        if getattr(args, option) is None:
            continue
        given = [name for name, value in vars(args).items() if value is not None and value is not False]
        stray = [_flag(name) for name in given if name not in (option, *allowed)]
        if train_flags:
            stray.append("-- and the flags after it")
        if stray:
            raise UserError(f"{reason}: drop {', '.join(stray)}")


def check_numbers(values: Mapping[str, Any]) -> None:
    """Raise UserError for numbers that mean nothing, whether typed or read from a file; those absent or None are fine."""
    for name, least in _LEAST.items():
        value = values.get(name)
        if value is not None and type(value) is not int:
            raise UserError(f"{_flag(name)} must be a whole number, got {value!r}")
        if value is not None and value < least:
            raise UserError(f"{_flag(name)} must be at least {least}, got {value}")
    for name in ("seconds_per_run", "max_minutes"):
        value = values.get(name)
        if value is None:
            continue
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise UserError(f"{_flag(name)} must be a number above 0, got {value!r}")


def _flag(name: str) -> str:
    return "--from" if name == "redraw" else f"--{name.replace('_', '-')}"


def _check_in_process(settings: Settings) -> None:
    if settings.mode == "inference" and not settings.in_process:
        raise UserError("--mode inference needs --in-process: a run of train.py times training steps")
    for name, usual in (("nproc_per_node", 1), ("epochs", None)):
        if settings.in_process and getattr(settings, name) != usual:
            raise UserError(f"--in-process times steps in one process: drop {_flag(name)}")


def _apply_file(settings: Settings, name: str) -> None:
    content = _read(name)
    settings.common = shlex.split(str(content.get("flags") or ""))
    if content.get("arms"):
        settings.arms = {str(name): str(flags or "") for name, flags in content["arms"].items()}
    settings.title = content.get("title", Path(name).stem)
    for key in ("rounds", "timing_warmup_steps", "steps", "max_minutes"):
        if key in content:
            setattr(settings, key, content[key])
    otherwise = content.get("without_cuda")
    if otherwise and not has_cuda():
        if not fast_bfloat16():
            raise UserError(
                f"{Path(name).stem}: half precision has no fast path on this CPU (neither AVX512-BF16 nor AMX) and there is "
                f"no CUDA device: take --config {otherwise['instead']}"
            )
        settings.common += shlex.split(otherwise["flags"])


def _read(name: str) -> dict[str, Any]:
    import yaml

    path = Path(name) if name.endswith((".yaml", ".yml")) or "/" in name else CONFIGS / f"{name}.yaml"
    if not path.exists() and path.suffix not in (".yaml", ".yml"):
        path = path.with_name(path.name + ".yaml")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in CONFIGS.glob("*.yaml")))
        raise UserError(f"--config {name!r}: {error.strerror}; configs/ab/ holds {known}") from None
    except yaml.YAMLError as error:
        raise UserError(f"--config {name!r} is no readable YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(content, dict) or not isinstance(content.get("arms", {}), dict):
        raise UserError(f"--config {name!r} must hold `key: value` lines, its arms a mapping of names to flags")
    unknown = sorted(set(map(str, content)) - set(_FILE_KEYS))
    if unknown:
        raise UserError(f"--config {name!r}: unknown key {unknown[0]!r}; known are {', '.join(_FILE_KEYS)}")
    return content


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def fast_bfloat16() -> bool:
    """Whether this CPU computes in bfloat16 faster than in float32."""
    from trainer.hardware import FAST_BF16, cpu_info

    return bool(cpu_info()[1] & set(FAST_BF16))

"""What a sweep is asked for: models, modes, settings, options; the order of its measurements and what they may cost."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ab.arms import DEFAULT_ARMS, name_and_flags, parse_arms
from ab.settings import MODES, Parser, check_numbers
from trainer.errors import UserError

# The tutorial's own lists, and what it says of them: faster by so much.
TUTORIAL_GPU = (
    "alexnet mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 resnet101 resnet152 resnet18 resnet34 resnet50 "
    "resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 "
    "vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn wide_resnet101_2 wide_resnet50_2"
).split()
TUTORIAL_CPU = (
    "alexnet densenet121 densenet161 densenet169 googlenet inception_v3 mnasnet0_5 mnasnet1_0 resnet101 resnet152 resnet18 "
    "resnet34 resnet50 resnext101_32x8d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 squeezenet1_0 squeezenet1_1 "
    "vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn wide_resnet101_2 wide_resnet50_2"
).split()
LISTS = {"tutorial-gpu": TUTORIAL_GPU, "tutorial-cpu": TUTORIAL_CPU}
PUBLISHED = {
    "tutorial, Volta GPUs: 8 to 35 %": (1.08, 1.35),
    "tutorial, inference on Ice Lake or newer CPUs: 26 to 76 %": (1.26, 1.76),
}
# What every comparison of a sweep is given.
OPTIONS = ("rounds", "steps", "timing_warmup_steps", "seconds_per_run")
Key = tuple[str, str, str]  # model, mode, setting


@dataclass(frozen=True)
class Plan:
    """``settings``: name to flags; ``options``: of compare.py; ``common``: flags of every run."""

    models: list[str]
    modes: list[str]
    settings: dict[str, str]
    options: dict[str, Any]
    common: list[str]

    def keys(self, work: Mapping[str, float]) -> list[Key]:
        """Every measurement, models of least work first, all settings of a model together."""
        models = sorted(self.models, key=lambda model: (work.get(model, 0.0), model))
        return [(model, mode, name) for model in models for mode in self.modes for name in self.settings]

    def words(self, key: Key, folder: str) -> list[str]:
        """The command line of compare.py for one measurement."""
        model, mode, setting = key
        words = ["--mode", mode, "--no-plots", "--max-minutes", "100000", "--output-dir", folder]
        for name, value in self.options.items():
            flag = f"--{name.replace('_', '-')}"
            words += ([flag] if value else []) if isinstance(value, bool) else [flag, str(value)]
        return [*words, "--", *self.common, *shlex.split(self.settings[setting]), "-a", model]


def build_parser() -> Parser:
    parser = Parser(
        prog="sweep.py",
        usage="sweep.py --models LIST [options] -- [train.py flags] [DIR]",
        description="Measure channels-last against contiguous for one model after another, as compare.py does, into one table.",
        epilog="A second call with the same --output-dir skips what is measured and adds the rest. Exit codes: 0 done; 1 a model "
        "failed; 2 a mistake in flags; 3 a model's results differ between the formats; 130 interrupted.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--models",
        metavar="LIST",
        help="tutorial-gpu, tutorial-cpu, all (of torchvision's classifiers), or names: a,b,c",
    )
    add(
        "--mode",
        choices=(*MODES, "both"),
        default="train",
        help="training steps, forward passes in eval mode, or both (train)",
    )
    add(
        "--setting",
        action="append",
        metavar="'NAME: flags'",
        help="flags to measure each model with (repeat for several)",
    )
    add("--in-process", action="store_true", help="both formats of a model in one process; inference needs it")
    add("--rounds", type=int, metavar="N", help="as in compare.py, as are the next three")
    add("--steps", type=int, metavar="N")
    add("--timing-warmup-steps", type=int, metavar="N")
    add("--seconds-per-run", type=float, metavar="S")
    add("--max-minutes", type=float, metavar="M", help="start no measurement that would end later than this")
    add("--output-dir", metavar="DIR", help="where everything goes (runs/sweep-<date-time>)")
    add(
        "--from",
        dest="redraw",
        nargs="+",
        metavar="DIR",
        help="write the table of these sweeps again, without a run; a later one's row takes an earlier one's place",
    )
    add("--table", metavar="FILE.md", help="write the table there too, its pictures beside it")
    return parser


def read_plan(args: argparse.Namespace, flags: Sequence[str]) -> Plan:
    """Raises UserError."""
    if not args.models:
        raise UserError(f"say which models: --models {', '.join(LISTS)}, all, or names with commas between")
    if args.mode != "train" and not args.in_process:
        raise UserError(f"--mode {args.mode} needs --in-process: a run of train.py times training steps")
    if any("hugepages" in word for word in [*flags, *(args.setting or [])]):
        raise UserError(
            "--cpu-heap hugepages is settled when torch is loaded, once for a sweep: take default or retain"
        )
    pairs = [name_and_flags(text, "--setting") for text in args.setting or ["default:"]]
    settings = {name: words.strip() for name, words in pairs}
    if len(settings) < len(pairs):
        raise UserError("two settings have the same name: give each one of its own")
    check_numbers(vars(args))
    models = model_names(args.models)
    for words in settings.values():  # before a record or a child is begun
        arms = {arm: f"{words} {own}" for arm, own in DEFAULT_ARMS.items()}
        parse_arms(arms, [*flags, "-a", models[0]])
    options = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    modes = list(MODES) if args.mode == "both" else [args.mode]
    return Plan(models, modes, settings, {**options, "in_process": args.in_process}, list(flags))


def model_names(text: str) -> list[str]:
    if text in LISTS:
        return list(LISTS[text])
    if text == "all":
        from torchvision import models

        return list(models.list_models(module=models))
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UserError(f"--models {text!r} names no model")
    return names


def work_of(names: Iterable[str]) -> dict[str, float]:
    """Billions of multiply-adds of one forward pass, as torchvision states them beside its weights; where it does not, absent."""
    from torchvision import models

    known = set(models.list_models(module=models))
    found = {}
    for name in names:
        if name in known:
            operations = models.get_model_weights(name).DEFAULT.meta.get("_ops")  # type: ignore[attr-defined]
            if operations:
                found[name] = float(operations)
    return found


def expected_seconds(key: Key, done: Mapping[Key, float], work: Mapping[str, float]) -> float:
    """What a measurement will take, from ``done`` (seconds) ones of its mode and setting, else of all; 0 where nothing is
    known. Seconds are taken as proportional to 1 + work: the smallest models cost their start."""
    alike = {other: seconds for other, seconds in done.items() if other[1:] == key[1:]} or dict(done)
    if not alike:
        return 0.0
    unit = sum(alike.values()) / sum(1 + work.get(model, 0.0) for model, _, _ in alike)
    return unit * (1 + work.get(key[0], 0.0))

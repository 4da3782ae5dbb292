"""The flag table against the documented one, and a --help that needs neither torch nor numpy."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.cli import build_parser, parse
from trainer.config import DEFAULTS, KEYS
from trainer.errors import UserError
from trainer.flags import GROUPS, ROWS

ROOT = Path(__file__).resolve().parent.parent

# (every spelling, canonical first; a value to give and its typed form; the default, None = chosen at the start)
TABLE: list[tuple[str, Any, Any, Any]] = [
    ("--data-dir --data-path", "/images", "/images", None),
    ("--synthetic --dummy", "true", True, False),
    ("--synthetic-size", "100", 100, 25000),
    ("--num-classes", "10", 10, None),
    ("--image-size --train-crop-size --img-size", "32", 32, None),
    ("--val-image-size --val-crop-size", "32", 32, None),
    ("--val-resize --val-resize-size", "36", 36, None),
    ("--val-batch-size -vb", "8", 8, None),
    ("--interpolation", "bicubic", "bicubic", None),
    ("--mean", ("0.1", "0.2", "0.3"), (0.1, 0.2, 0.3), None),
    ("--std", ("0.1", "0.2", "0.3"), (0.1, 0.2, 0.3), None),
    ("--hflip", "0", 0.0, 0.5),
    ("--crop-scale", ("0.5", "1"), (0.5, 1.0), (0.08, 1.0)),
    ("--auto-augment --aa", "ta_wide", "ta_wide", None),
    ("--random-erase --reprob", "0.1", 0.1, 0.0),
    ("--mixup --mixup-alpha", "0.2", 0.2, 0.0),
    ("--cutmix --cutmix-alpha", "1", 1.0, 0.0),
    ("--exif-orientation", "apply", "apply", "ignore"),
    ("--max-image-pixels", "1000", 1000, None),
    ("--bad-images", "skip", "skip", "fail"),
    ("--max-bad-images", "2.5%", "2.5%", None),
    ("--val-labels", "/val.csv", "/val.csv", None),
    ("--class-map", "/classes.json", "/classes.json", None),
    ("--rescan", "true", True, False),
    ("--check-data", "full", "full", None),
    ("--bench-data", "20", 20, None),
    ("--json", "true", True, False),
    ("--arch -a --model", "resnet50", "resnet50", "resnet18"),
    ("--pretrained", "true", True, False),
    ("--weights", "IMAGENET1K_V2", "IMAGENET1K_V2", None),
    ("--ra-reps --aug-repeats", "3", 3, 1),
    ("--progressive", "16:0.0,32:0.5", (16.0, 0.0, 32.0, 0.5), None),
    ("--freeze-backbone", "true", True, False),
    ("--stochastic-depth --drop-path", "0.2", 0.2, None),
    ("--batch-size -b --b", "8", 8, 256),
    ("--global-batch-size", "64", 64, None),
    ("--workers -j", "2", 2, None),
    ("--epochs", "3", 3, None),
    ("--start-epoch", "2", 2, 0),
    ("--steps-per-epoch", "5", 5, None),
    ("--lr --learning-rate", "1e-3", 0.001, 0.1),
    ("--momentum", "0.8", 0.8, 0.9),
    ("--weight-decay --wd", "5e-5", 5e-5, 1e-4),
    ("--norm-weight-decay", "0", 0.0, None),
    ("--bias-weight-decay", "0", 0.0, None),
    ("--opt", "adamw", "adamw", "sgd"),
    ("--val-every --val-interval", "2", 2, 1),
    ("--early-stop", "3", 3, None),
    ("--lr-scaling", "none", "none", "linear"),
    ("--lr-schedule --lr-scheduler --sched", "cosine", "cosine", "step"),
    ("--lr-milestones", ("3", "6.5"), (3.0, 6.5), None),
    ("--lr-step-size", "7", 7.0, None),
    ("--lr-gamma", "0.5", 0.5, 0.1),
    ("--lr-min --min-lr", "1e-5", 1e-5, 0.0),
    ("--lr-warmup-epochs --warmup-epochs", "0.5", 0.5, None),
    ("--lr-warmup-decay", "0.01", 0.01, 0.0),
    ("--grad-accum-steps --grad-accum", "4", 4, 1),
    ("--clip-grad-norm --clip-grad", "1", 1.0, None),
    ("--label-smoothing --smoothing", "0.1", 0.1, 0.0),
    ("--model-ema --model-ema-decay", "0.99", 0.99, None),
    ("--ema-eval", "true", True, False),
    ("--opt-level", "O2", "O2", None),
    ("--amp-dtype", "bfloat16", "bfloat16", "auto"),
    ("--keep-batchnorm-fp32", "False", False, None),
    ("--loss-scale", "128.0", 128.0, None),
    ("--channels-last", "true", True, False),
    ("--audit-layout", "true", True, None),
    ("--sync-bn --sync_bn", "true", True, False),
    ("--print-freq -p --log-interval", "1", 1, 10),
    ("--output-dir --output", "out", "out", None),
    ("--tensorboard", "false", False, True),
    ("--resume", "auto", "auto", None),
    ("--evaluate -e --test-only", "true", True, False),
    ("--seed", "3", 3, 0),
    ("--deterministic --use-deterministic-algorithms", "true", True, False),
    ("--save-every-steps", "100", 100, None),
    ("--save-every-minutes", "2.5", 2.5, 15.0),
    ("--keep-checkpoints", "5", 5, 3),
    ("--async-save", "false", False, True),
    ("--on-save-error", "stop", "stop", None),
    ("--rewind", "true", True, False),
    ("--prof", "4", 4, None),
    ("--device", "cpu", "cpu", "auto"),
    ("--compile --torchcompile", "true", True, False),
    ("--tf32", "false", False, True),
    ("--cpu-heap", "retain", "retain", "auto"),
    ("--micro-batch", "4", 4, None),
    ("--stop-after-epochs", "1", 1, None),
    ("--stop-after-steps", "1", 1, None),
    ("--timing-warmup-steps", "2", 2, 5),
    ("--summary", "true", True, False),
    ("--step-times", "true", True, False),
    ("--traceback", "true", True, False),
    ("--dist-timeout", "20", 20.0, 300.0),
]
# Each is refused without the other.
PAIRED = {"--train-shards": "train_shards", "--val-shards": "val_shards"}
NEEDS_DIR = ("val_labels", "class_map", "check_data", "bench_data")
# Flags that are no setting: where the settings come from, the launchers' rank, and --amp, a spelling of O1.
NO_SETTING = [("--config -c", "config"), ("--local-rank --local_rank", "local_rank"), ("--amp", "opt_level")]


def key_of(spellings: str) -> str:
    return spellings.split()[0].removeprefix("--").replace("-", "_")


def words(value: Any) -> list[str]:
    return list(value) if isinstance(value, tuple) else [value]


def actions() -> list[argparse.Action]:
    return [action for action in build_parser()._actions if action.dest != "help"]


@pytest.mark.parametrize(("spellings", "text", "typed", "default"), TABLE, ids=[row[0] for row in TABLE])
def test_flag_has_its_spellings_and_default(spellings: str, text: Any, typed: Any, default: Any) -> None:
    key = key_of(spellings)
    assert DEFAULTS[key] == default
    assert type(DEFAULTS[key]) is type(default)
    assert getattr(parse([]).config, key) == default
    folder = {"data_dir": "/images"} if key in NEEDS_DIR else {}
    for flag in spellings.split():
        request = parse([flag, *words(text), *folder.values()])
        assert dict(request.given) == {key: typed, **folder}
        assert getattr(request.config, key) == typed
        assert type(getattr(request.config, key)) is type(typed)


WITH_DIR = [row[:3] for row in TABLE if not row[0].startswith(("--data-dir", "--synthetic "))]


@pytest.mark.parametrize(("spellings", "text", "typed"), WITH_DIR, ids=[row[0] for row in WITH_DIR])
def test_no_flag_swallows_a_following_dir(spellings: str, text: Any, typed: Any) -> None:
    config = parse([spellings.split()[0], *words(text), "/images"]).config
    assert config == parse(["/images", spellings.split()[0], *words(text)]).config
    assert config.data_dir == "/images"
    assert getattr(config, key_of(spellings)) == typed


def test_table_and_parser_hold_the_same_spellings() -> None:
    documented = {flag: key_of(row[0]) for row in TABLE for flag in row[0].split()}
    documented |= PAIRED
    documented |= {flag: key for spellings, key in NO_SETTING for flag in spellings.split()}
    assert {flag: action.dest for action in actions() for flag in action.option_strings} == documented


def test_every_setting_has_a_flag_and_every_flag_a_setting() -> None:
    assert {row.key for row in ROWS} == set(KEYS) | {"config", "local_rank"}
    assert [key_of(row[0]) for row in TABLE if key_of(row[0]) not in KEYS] == []


def test_no_spelling_stands_for_two_settings() -> None:
    flags = [flag for row in ROWS for flag in row.flags]
    assert len(flags) == len(set(flags))


def test_help_shows_every_flag_under_its_group() -> None:
    text = build_parser().format_help()
    assert [text.index(f"\n{title}:") for title in GROUPS] == sorted(text.index(f"\n{title}:") for title in GROUPS)
    for row in ROWS:
        assert all(flag in text for flag in row.flags)
    assert "DIR" in text
    assert max(map(len, text.splitlines())) <= 118


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["--lr", "abc", "--help"], ["DIR", "--help", "--unknown"]])
def test_help_ends_with_exit_code_0(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)
    assert ended.value.code == 0
    assert "--channels-last" in capsys.readouterr().out


def test_help_imports_neither_torch_nor_numpy() -> None:
    code = """
import sys, trainer.cli, trainer.config
try:
    trainer.cli.parse(["--help"])
except SystemExit as end:
    assert end.code == 0
trainer.cli.parse(["-a", "resnet50", "--b", "200", "--channels-last", "true"])
heavy = sorted({name.split(".")[0] for name in sys.modules} & {"torch", "torchvision", "numpy", "PIL", "tensorboard"})
print("heavy:", heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: train.py")
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [
        ("--channel-last", "--channels-last"),
        ("--channels_last", "--channels-last"),
        ("--channels", "--channels-last"),
        ("--batchsize=3", "--batch-size"),
        ("--opt_level", "--opt-level"),
        ("--worker", "--workers"),
        ("--pretrain", "--pretrained"),
        ("-vb32", "-vb"),
        ("-v", "-vb"),
    ],
)
def test_unknown_flag_names_the_nearest_and_is_no_abbreviation(typed: str, nearest: str) -> None:
    for argv in ([typed], [typed, "/images"], ["-a", "resnet50", typed, "4"]):
        with pytest.raises(UserError) as failed:
            parse(argv)
        assert str(failed.value) == f"unknown flag {typed.split('=')[0]}; the nearest known one is {nearest}"
        assert failed.value.exit_code == 2


def test_unknown_flag_far_from_all_points_to_help() -> None:
    with pytest.raises(UserError, match=r"^unknown flag --qqqqqqqq; see train.py --help$"):
        parse(["--qqqqqqqq", "1"])

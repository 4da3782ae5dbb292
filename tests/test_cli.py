"""Command line and YAML file to a TrainConfig: what wins over what, where a DIR may stand, what ends as a sentence."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from trainer.cli import merge_with_checkpoint, parse
from trainer.config import KEYS, PER_START, TrainConfig
from trainer.errors import UserError

# The commands of the tutorial and of the original script's README.
COMMANDS: list[tuple[str, dict[str, Any]]] = [
    ("-a resnet50 --b 200 --workers 16 --opt-level O2 ./data", {"opt_level": "O2", "batch_size": 200, "workers": 16}),
    ("-a resnet50 --b 200 --workers 16 --opt-level O2 --channels-last true ./data", {"channels_last": True}),
    ("-a resnet50 --b 128 --workers 4 --opt-level O0 ./", {"opt_level": "O0", "batch_size": 128}),
    ("-a resnet50 --b 224 --workers 4 --opt-level O3 ./", {"opt_level": "O3"}),
    ("-a resnet50 --b 224 --workers 4 --opt-level O3 --keep-batchnorm-fp32 True ./", {"keep_batchnorm_fp32": True}),
    ("-a resnet50 --b 224 --workers 4 --opt-level O1 ./", {"opt_level": "O1"}),
    ("-a resnet50 --b 224 --workers 4 --opt-level O1 --loss-scale 128.0 ./", {"loss_scale": 128.0}),
    ("-a resnet50 --b 224 --workers 4 --opt-level O2 ./", {"opt_level": "O2"}),
    ("-a resnet50 --b 224 --workers 4 --opt-level O2 --loss-scale 128.0 ./", {"loss_scale": 128.0}),
]
PLAIN: list[tuple[str, dict[str, Any]]] = [
    ("--channels-last images", {"channels_last": True, "data_dir": "images"}),
    ("--channels-last", {"channels_last": True}),
    ("--channels-last yes images", {"channels_last": True, "data_dir": "images"}),
    ("images --channels-last no", {"channels_last": False, "data_dir": "images"}),
    ("-b 8 images --lr 0.2", {"batch_size": 8, "data_dir": "images", "lr": 0.2}),
    ("-e images", {"evaluate": True, "data_dir": "images"}),
    ("-e false", {"evaluate": False}),
    ("--deterministic -e --compile images", {"deterministic": True, "evaluate": True, "compile": True, "data_dir": "images"}),
    ("-vb 32 -b200 -j4", {"val_batch_size": 32, "batch_size": 200, "workers": 4}),
    ("-b=8 -vb=9", {"batch_size": 8, "val_batch_size": 9}),
    ("--amp images", {"opt_level": "O1", "data_dir": "images"}),
    ("--opt-level o3", {"opt_level": "O3"}),
    ("--amp --opt-level O2", {"opt_level": "O2"}),
    ("--lr-milestones 30 60 images", {"lr_milestones": (30.0, 60.0), "data_dir": "images"}),
    ("--lr-milestones 30 60 .", {"lr_milestones": (30.0, 60.0), "data_dir": "."}),
    ("--lr-milestones 30 60 ..", {"lr_milestones": (30.0, 60.0), "data_dir": ".."}),
    ("--lr-milestones 30 60 ./2012", {"lr_milestones": (30.0, 60.0), "data_dir": "2012"}),
    ("--lr-milestones 30, 60, -b 8", {"lr_milestones": (30.0, 60.0), "batch_size": 8}),
    ("images --lr-milestones 1.5 2e1", {"lr_milestones": (1.5, 20.0), "data_dir": "images"}),
    ("--lr-milestones=30,60 images", {"lr_milestones": (30.0, 60.0), "data_dir": "images"}),
    ("--lr-milestones None images", {"lr_milestones": None, "data_dir": "images"}),
    ("--keep-batchnorm-fp32 None images", {"keep_batchnorm_fp32": None, "data_dir": "images"}),
    ("--opt-level O2 --keep-batchnorm-fp32 False", {"opt_level": "O2", "keep_batchnorm_fp32": False}),
    ("--loss-scale None", {"loss_scale": None}),
    ("--loss-scale dynamic", {"loss_scale": "dynamic"}),
    ("--prof -1", {"prof": None}),
    ("--local-rank=0 images", {"data_dir": "images"}),  # R67
    ("--local_rank 3 images", {"data_dir": "images"}),
    ("--lr-schedule multisteplr", {"lr_schedule": "step"}),
    ("--sched steplr", {"lr_schedule": "step", "lr_step_size": 30.0}),
    ("--lr-step-size 7 --lr-scheduler StepLR", {"lr_schedule": "step", "lr_step_size": 7.0}),
    ("--lr-scheduler cosineannealinglr", {"lr_schedule": "cosine"}),
    ("-b 8 -- images", {"batch_size": 8, "data_dir": "images"}),
    ("-b 8 -- -images", {"batch_size": 8, "data_dir": "-images"}),
    ("images --", {"data_dir": "images"}),
    ("-b 8 -b 9", {"batch_size": 9}),
    ("null", {"data_dir": "null"}),
]  # fmt: skip
REFUSED: list[tuple[list[str], str]] = [
    (["--channels-last=maybe"], "--channels-last needs true, false or 'auto', got 'maybe'"),
    (["--channels-last", "maybe", "images"], "one DIR at most"),
    (["--channels-last="], "--channels-last needs true, false or 'auto'"),
    (["--lr-milestones"], "--lr-milestones needs numbers"),
    (["--lr-milestones", "images"], "--lr-milestones needs numbers"),
    (["--lr-milestones", "-5", "3"], "--lr-milestones must rise from above 0"),
    (["--lr-milestones=30,nan"], "--lr-milestones must be finite"),
    (["--sched", "plateau"], "--lr-schedule must be one of step, cosine"),
    (["--loss-scale", "big"], "--loss-scale needs a number or 'dynamic', got 'big'"),
    (["--opt-level", "O4"], "--opt-level must be one of O0, O1, O2, O3"),
    (["--opt-level", "O1", "--keep-batchnorm-fp32", "True"], "--keep-batchnorm-fp32"),
    (["a", "b"], "one DIR at most, got 'a' and 'b'"),
    (["a", "--data-dir", "b"], "DIR is given twice: 'a' and --data-dir 'b'"),
    (["a", "--", "b"], "one DIR at most"),
    (["--synthetic", "images"], "--synthetic"),
    ([""], "--data-dir needs text"),
    (["--data-dir", ""], "--data-dir needs text"),
    (["--resume", ""], "--resume needs text"),
    (["--config", ""], "--config ''"),
    (["-b"], "expected one argument"),
    (["--mean", "0.5", "0.5"], "expected 3 arguments"),
    (["--mean", "0.5", "0.5", "images"], "--mean needs 3 numbers"),
    (["--mean", "nan", "0", "0"], "--mean must be finite"),
    (["--amp=yes"], "--amp"),
    (["--model-ema", "99"], "--model-ema must"),
    (["--model-ema", "-0.1"], "--model-ema must"),
    (["--model-ema", "false"], "--model-ema needs a number"),
    (["--lr", "nan"], "--lr must be at least 0"),
    (["--lr", "-1"], "--lr must be at least 0"),
    (["--lr=-inf"], "--lr must be at least 0"),
    (["--seed", "9" * 30], "--seed needs a whole number"),
    (["-b", "9" * 5000], "--batch-size needs a whole number"),
    (["-5"], "unknown flag -5"),
    (["--lines\nbroken"], "unknown flag '--lines\\nbroken'"),
    (["a\nb", "c"], "'a\\nb'"),
    (["-c", "x" * 5000], "--config"),
    (["-c", "\x00"], "--config"),
]


def resolved(expected: dict[str, Any]) -> dict[str, Any]:
    if expected.get("data_dir"):
        return {**expected, "data_dir": os.path.abspath(expected["data_dir"])}
    return expected


def sentence(argv: list[str]) -> str:
    with pytest.raises(UserError) as failed:
        parse(argv)
    message = str(failed.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 400
    return message


@pytest.mark.parametrize(("line", "expected"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_the_original_commands_parse_flag_for_flag(line: str, expected: dict[str, Any]) -> None:
    config = parse(shlex.split(line)).config
    assert {key: getattr(config, key) for key in expected} == expected
    assert (config.arch, config.data_dir) == ("resnet50", os.path.abspath(line.split()[-1]))


@pytest.mark.parametrize(("line", "expected"), PLAIN, ids=[line for line, _ in PLAIN])
def test_line_gives_exactly_these_settings(line: str, expected: dict[str, Any]) -> None:
    request = parse(shlex.split(line))
    assert dict(request.given) == resolved(expected)
    assert request.config == TrainConfig(**resolved(expected))


@pytest.mark.parametrize(("argv", "message"), REFUSED, ids=[repr(argv)[:40] for argv, _ in REFUSED])
def test_refused_line_is_one_sentence(argv: list[str], message: str) -> None:
    assert message in sentence(argv)


@pytest.mark.parametrize("position", range(5))
def test_dir_may_stand_anywhere_between_flags(position: int) -> None:
    flags = [["-a", "vgg11"], ["--channels-last"], ["--lr-milestones", "3", "6"], ["--deterministic"]]
    parts = [*flags[:position], ["images"], *flags[position:]]
    config = parse([word for part in parts for word in part]).config
    images = os.path.abspath("images")
    assert config == TrainConfig(
        arch="vgg11", channels_last=True, lr_milestones=(3.0, 6.0), deterministic=True, data_dir=images
    )


def test_data_dir_is_absolute_and_knows_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for spelling in ("images", "./images/", "~/images", str(tmp_path / "images")):
        request = parse([spelling])
        assert request.config.data_dir == request.given["data_dir"] == str(tmp_path / "images")


def test_files_about_the_folder_are_absolute_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    request = parse(["images", "--val-labels", "val.csv", "--class-map", "~/map.json"])
    paths = {key: str(tmp_path / name) for key, name in [("val_labels", "val.csv"), ("class_map", "map.json")]}
    assert {key: getattr(request.config, key) for key in paths} == paths
    assert {key: request.given[key] for key in paths} == paths


def test_a_resumed_run_may_name_a_label_file_for_the_checkpoints_folder() -> None:
    given = parse(["--resume", "last.pt", "--val-labels", "/val.csv"]).given
    assert merge_with_checkpoint(given, {"data_dir": "/images"}).val_labels == "/val.csv"


def test_parse_reads_the_command_line_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "-b", "7"])
    assert parse().config.batch_size == 7


def test_a_checkpoint_fills_what_is_not_given() -> None:
    saved = dict(vars(TrainConfig(arch="resnet50", batch_size=8, lr=0.5, lr_milestones=(3.0, 6.0), data_dir="/images")))
    saved |= {"lr_milestones": [3, 6], "crop_scale": [0.5, 1], "key_of_a_later_version": 1}  # as plain types come back
    merged = merge_with_checkpoint(parse(["--lr", "0.1"]).given, saved)
    assert merged == TrainConfig(
        arch="resnet50", batch_size=8, lr=0.1, lr_milestones=(3.0, 6.0), data_dir="/images", crop_scale=(0.5, 1.0)
    )


def test_a_checkpoint_never_fills_the_settings_of_one_start() -> None:
    one_start: dict[str, Any] = {
        "output_dir": "out", "resume": "auto", "traceback": True, "stop_after_epochs": 2, "stop_after_steps": 3,
        "prof": 4, "evaluate": True, "start_epoch": 1, "rescan": True, "check_data": "full", "json": True,
        "step_times": True, "audit_layout": False, "dist_timeout": 20.0,
    }  # fmt: skip
    assert {*one_start, "bench_data", "summary"} == set(PER_START)  # which --check-data excludes
    run = {"batch_size": 8, "data_dir": "/images"}
    saved = {**vars(TrainConfig(**run)), **one_start}
    assert merge_with_checkpoint({}, saved) == TrainConfig(**run)
    assert merge_with_checkpoint(one_start, saved) == TrainConfig(**run, **one_start)


@pytest.mark.parametrize(
    ("saved", "line", "merged"),
    [
        ({"synthetic": True}, "/images", {"data_dir": "/images"}),
        ({"data_dir": "/images"}, "--synthetic", {"synthetic": True}),
        ({"data_dir": "/images"}, "--synthetic false", {"data_dir": "/images"}),
        (
            {"data_dir": "/images", "val_labels": "/val.csv", "class_map": "/map.json"},
            "--synthetic",
            {"synthetic": True},
        ),
        ({"data_dir": "/images", "class_map": "/map.json"}, "/set", {"data_dir": "/set", "class_map": "/map.json"}),
        ({"pretrained": True}, "--weights a.pt", {"weights": "a.pt"}),
        ({"weights": "a.pt"}, "--pretrained", {"pretrained": True}),
        ({"lr_milestones": (3.0,)}, "--lr-step-size 2", {"lr_step_size": 2.0}),
        ({"lr_step_size": 2.0}, "--lr-milestones 3", {"lr_milestones": (3.0,)}),
        ({"lr_step_size": 2.0}, "--sched steplr", {"lr_step_size": 2.0}),
        ({"lr_milestones": (3.0,)}, "--lr-schedule cosine", {"lr_schedule": "cosine"}),
        ({"keep_batchnorm_fp32": True}, "--opt-level O1", {"opt_level": "O1"}),
        ({"loss_scale": 128.0}, "--amp-dtype bfloat16", {"amp_dtype": "bfloat16"}),
        ({"loss_scale": 128.0}, "--loss-scale None", {}),
    ],
)
def test_a_given_flag_drops_what_it_excludes_from_below(
    saved: dict[str, Any], line: str, merged: dict[str, Any], tmp_path: Path
) -> None:
    import yaml

    file = tmp_path / "below.yaml"
    file.write_text(yaml.safe_dump({key: list(v) if isinstance(v, tuple) else v for key, v in saved.items()}))
    assert parse([*line.split(), "-c", str(file)]).config == TrainConfig(**merged)
    if line != "--sched steplr":  # there the command line says 30, and a given flag wins over a checkpoint
        full = dict(vars(TrainConfig(**saved)))
        assert merge_with_checkpoint(parse(line.split()).given, full) == TrainConfig(**merged)


def test_a_checkpoint_with_a_wrong_type_is_one_sentence() -> None:
    with pytest.raises(UserError, match="--batch-size needs a whole number"):
        merge_with_checkpoint({}, {"batch_size": [1]})


def test_keys_are_all_inherited_or_of_one_start() -> None:
    saved = vars(TrainConfig(epochs=7, seed=3, device="cpu", workers=1))
    assert vars(merge_with_checkpoint({}, saved)) == {key: saved[key] for key in KEYS}

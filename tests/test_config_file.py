"""The YAML file behind --config: its types, what wins over it, and what ends as one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trainer.cli import parse
from trainer.config import DEFAULTS, KEYS, TrainConfig
from trainer.errors import UserError

ACCEPTED: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    ("# nothing\n", {}),
    ("weight_decay: 1e-4", {"weight_decay": 1e-4}),  # YAML 1.1 reads this as text
    ("lr: 1", {"lr": 1.0}),
    ("lr_milestones: [30, 60.5, 8e1]", {"lr_milestones": (30.0, 60.5, 80.0)}),
    ("lr_milestones:\n- 30\n- 60\n", {"lr_milestones": (30.0, 60.0)}),
    ("lr_milestones: 30", {"lr_milestones": (30.0,)}),
    ("lr_milestones: 30 60", {"lr_milestones": (30.0, 60.0)}),
    ("mean: [0.5, 0.5, 0.5]\ncrop_scale: [0.5, 1]", {"mean": (0.5, 0.5, 0.5), "crop_scale": (0.5, 1.0)}),
    ("opt_level: o2\nkeep_batchnorm_fp32: 'False'", {"opt_level": "O2", "keep_batchnorm_fp32": False}),
    ("channels_last: yes\nsync_bn: no", {"channels_last": True, "sync_bn": False}),
    ("channels_last: 1\nsync_bn: 'no'", {"channels_last": True, "sync_bn": False}),
    ("loss_scale: dynamic", {"loss_scale": "dynamic"}),
    ("loss_scale: 128", {"loss_scale": 128.0}),
    ("loss_scale: None", {"loss_scale": None}),
    ("epochs: null\nnum_classes: ~\nworkers:\n", {"epochs": None, "num_classes": None, "workers": None}),
    ("lr_scaling: none", {"lr_scaling": "none"}),
    ("lr_schedule: steplr", {"lr_schedule": "step", "lr_step_size": 30.0}),
    ("lr_schedule: steplr\nlr_step_size: 7", {"lr_schedule": "step", "lr_step_size": 7.0}),
    ("lr_step_size: 7\nlr_schedule: steplr", {"lr_schedule": "step", "lr_step_size": 7.0}),
    ("lr_schedule: cosineannealinglr", {"lr_schedule": "cosine"}),
    ("data_dir: /images", {"data_dir": "/images"}),
    ("output_dir: out\nresume: auto", {"output_dir": "out", "resume": "auto"}),
    ("\ufeffbatch_size: 8", {"batch_size": 8}),
]
REFUSED: list[tuple[str, str]] = [
    ("batch-size: 8", "unknown key 'batch-size'; it is spelled batch_size here"),
    ("bacth_size: 8", "unknown key 'bacth_size'; the nearest known one is batch_size"),
    ("config: a.yaml", "unknown key 'config'"),
    ("local_rank: 0", "unknown key 'local_rank'"),
    ("zzzzzz: 0", "unknown key 'zzzzzz'; see train.py --help"),
    ("1: 2", "unknown key 1"),
    ("on: true", "unknown key True"),
    ("null: 1", "unknown key None"),
    ("2026-01-01: 1", "unknown key"),
    ("? [1, 2]\n: 3", ""),
    (f"? 0x{'f' * 5000}\n: 1", "unknown key a number of thousands of digits"),
    ('"a\\nb": 1', "unknown key 'a\\nb'"),
    ("lr: null", "--lr needs a number, not an empty value"),
    ("lr:", "--lr needs a number, not an empty value"),
    ("arch: null", "--arch needs text, not an empty value"),
    ("batch_size: big", "--batch-size needs a whole number, got 'big'"),
    ("batch_size: 1.5", "--batch-size needs a whole number, got 1.5"),
    ("batch_size: [8]", "--batch-size needs a whole number, got [8]"),
    ("batch_size: {a: {b: 8}}", "--batch-size needs a whole number"),
    ("batch_size: true", "--batch-size needs a whole number, got True"),
    ("batch_size: 2026-01-01", "--batch-size needs a whole number"),
    (f"batch_size: {'9' * 5000}", "no readable YAML"),
    (f"batch_size: 0x{'f' * 5000}", "--batch-size needs a whole number, got a number of thousands of digits"),
    (f"lr: {'9' * 400}", "--lr needs a number"),
    ("lr: .nan", "--lr must be at least 0, got nan"),
    ("lr: .inf", "--lr must be at least 0, got inf"),
    ("lr: [0.1]", "--lr needs a number, got [0.1]"),
    ("arch: [resnet18]", "--arch needs text"),
    ("arch: 18", "--arch needs text, got 18"),
    ("data_dir: ''", "--data-dir needs text"),
    ("data_dir: 5", "--data-dir needs text, got 5"),
    ("mean: 0.5", "--mean needs 3 numbers, got 0.5"),
    ("mean: {0: 0.5, 1: 0.5, 2: 0.5}", "--mean needs 3 numbers"),
    ("mean: [.nan, 0, 0]", "--mean must be finite"),
    ("lr_milestones: []", "--lr-milestones needs numbers, got []"),
    ("lr_milestones: [[30]]", "--lr-milestones needs numbers"),
    ("lr_milestones: [60, 30]", "--lr-milestones must rise"),
    ("lr_milestones: &again [*again]", "--lr-milestones needs numbers"),
    ("channels_last: maybe", "--channels-last needs true, false or 'auto', got 'maybe'"),
    ("channels_last: []", "--channels-last needs true, false or 'auto', got []"),
    ("loss_scale: big", "--loss-scale needs a number or 'dynamic', got 'big'"),
    ("loss_scale: true", "--loss-scale needs a number or 'dynamic', got True"),
    ("seed: -1", "--seed must be at least 0, got -1"),
    ("synthetic: true\ndata_dir: /images", "--synthetic"),
    ("opt_level: O1\nkeep_batchnorm_fp32: true", "--keep-batchnorm-fp32"),
    ("- batch_size\n- 8", "must hold `key: value` lines, found a list"),
    ("batch_size", "must hold `key: value` lines, found a str"),
    ("8", "must hold `key: value` lines, found a int"),
    ("a: b: c", "no readable YAML"),
    ("{", "no readable YAML"),
    ("lr: 1\n---\nlr: 2", "no readable YAML"),
    ("lr: 2026-99-99", "no readable YAML"),
    ("lr: !!bool maybe", "no readable YAML"),
    ("lr: !!python/object/apply:os.getcwd []", "no readable YAML"),
    ("lr: *unknown", "no readable YAML"),
    ("lr: `1`", "no readable YAML"),
    ("lr: " + "[" * 2000, "no readable YAML"),
    ("lr: \x00", "no readable YAML"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def sentence(argv: list[str]) -> str:
    with pytest.raises(UserError) as failed:
        parse(argv)
    message = str(failed.value)
    assert len(message.splitlines()) == 1
    assert failed.value.exit_code == 2
    return message


@pytest.mark.parametrize(("text", "expected"), ACCEPTED, ids=[repr(text)[:50] for text, _ in ACCEPTED])
def test_file_gives_exactly_these_settings(text: str, expected: dict[str, Any], file: Path) -> None:
    file.write_text(text, encoding="utf-8")
    request = parse(["--config", str(file)])
    assert dict(request.given) == expected
    assert request.config == TrainConfig(**expected)


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[repr(text)[:50] for text, _ in REFUSED])
def test_refused_file_is_one_sentence(text: str, message: str, file: Path) -> None:
    file.write_text(text, encoding="utf-8")
    found = sentence(["-c", str(file)])
    assert message in found
    assert len(found) < len(str(file)) + 500


@pytest.mark.parametrize("key", KEYS)
def test_every_setting_is_a_key_and_null_means_its_none(key: str, file: Path) -> None:
    import yaml

    default = DEFAULTS[key]
    file.write_text(yaml.safe_dump({key: list(default) if isinstance(default, tuple) else default}))
    request = parse(["-c", str(file)])
    assert dict(request.given) == {key: default}
    assert request.config == TrainConfig()


def test_command_line_over_file_over_default(file: Path) -> None:
    file.write_text("batch_size: 8\nlr: 0.5\nchannels_last: true\ndata_dir: /images\nresume: auto\n")
    config = parse(["--lr", "0.2", "-c", str(file), "/others", "--channels-last", "false"]).config
    assert config == TrainConfig(batch_size=8, lr=0.2, channels_last=False, data_dir="/others", resume="auto")
    assert config.momentum == 0.9


def test_the_last_of_two_files_counts(file: Path) -> None:
    file.write_text("batch_size: 8\n")
    other = file.with_name("other.yaml")
    other.write_text("lr: 0.5\n")
    assert parse(["-c", str(file), "-c", str(other)]).config == TrainConfig(lr=0.5)


def test_none_on_the_command_line_undoes_the_file(file: Path) -> None:
    file.write_text("epochs: 3\nloss_scale: 128\nopt_level: O2\nkeep_batchnorm_fp32: true\nlr_milestones: [1, 2]\n")
    argv = ["--epochs", "None", "--loss-scale", "None", "--keep-batchnorm-fp32", "None", "--lr-milestones", "None"]
    assert parse(["-c", str(file), *argv]).config == TrainConfig(opt_level="O2")


def test_a_folder_in_the_file_is_absolute_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    file.write_text("data_dir: images\n")
    request = parse(["-c", "run.yaml"])
    assert request.config.data_dir == request.given["data_dir"] == str(file.parent / "images")


def test_a_file_that_cannot_be_read_is_one_sentence(file: Path) -> None:
    file.write_text("lr: 1\n")
    missing = sentence(["-c", str(file.with_name("rum.yaml"))])
    assert "rum.yaml': No such file" in missing
    assert missing.endswith("holds 'run.yaml'")
    assert "directory" in sentence(["-c", str(file.parent)])
    assert "No such file" in sentence(["-c", str(file.parent / "none" / "run.yaml")])
    file.write_bytes(b"\xff\xfe lr: 1")
    assert "no readable YAML" in sentence(["-c", str(file)])

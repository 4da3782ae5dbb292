"""The folder of a run: named, locked, never shared; and which one `--resume auto` goes on with."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from trainer.config import KEYS, NOT_IN_FILE, TrainConfig
from trainer.config_file import read_config_file
from trainer.errors import UserError
from trainer.run_folder import (
    LAST,
    RunFolder,
    find_resumable,
    new_run_path,
    open_run_folder,
    read_json,
    run_of_checkpoint,
    to_yaml,
)

CONFIG = TrainConfig(data_dir="/set", arch="resnet50", lr_milestones=(1.0, 2.0), loss_scale="dynamic", lr=1e-5)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_run(name: str, age: float, state: str = "preempted", config: TrainConfig = CONFIG, saved: bool = True) -> Path:
    """A run folder that was last written ``age`` seconds ago."""
    folder = open_run_folder(Path("runs") / name, resuming=False)
    folder.write_config(config, config)
    folder.write_status(state)
    if saved:
        (folder.checkpoints / LAST).touch()
    folder.release()
    os.utime(folder.path / "status.json", (1e9 - age, 1e9 - age))
    return folder.path


def refused(path: Path, resuming: bool = False) -> str:
    with pytest.raises(UserError) as caught:
        open_run_folder(path, resuming)
    return str(caught.value)


# Name


def test_a_run_is_named_by_time_arch_level_and_format(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("time.strftime", lambda *_: "20240102-030405")
    path = new_run_path("resnet50", "O2", "channels_last")
    assert path == Path("runs/20240102-030405-resnet50-O2-channels_last")
    assert path.is_dir(), "made at once, so that two starts cannot pick one name"
    assert new_run_path("resnet50", "O2", "channels_last").name == path.name + "-2"
    assert new_run_path("resnet50", "O2", "channels_last").name == path.name + "-3"


@pytest.mark.parametrize(
    ("arch", "name"), [("my.nets:net", "my.nets_net"), ("timm:a/b", "timm_a_b"), ("../up", ".._up")]
)
def test_an_arch_cannot_leave_the_folder(arch: str, name: str):
    path = new_run_path(arch, "O0", "contiguous_format")
    assert path.parent == Path("runs")
    assert path.name.endswith(f"-{name}-O0-contiguous_format")


# Lock


def test_a_new_folder_is_made_and_locked():
    folder = open_run_folder(Path("deep/er/run"), resuming=False)
    assert folder.checkpoints.is_dir()
    assert (folder.path / ".lock").exists()
    assert "is in use by a running process" in refused(folder.path, resuming=True)
    folder.release()
    open_run_folder(folder.path, resuming=True).release()
    folder.release()  # twice is once


def test_an_existing_run_is_never_written_into():
    path = make_run("one", 0)
    assert f"{path} holds a run already" in refused(path)
    assert f"--resume {path}" in refused(path)
    open_run_folder(path, resuming=True).release()


def test_a_folder_with_other_things_in_it_may_become_a_run():
    Path("mine").mkdir()
    Path("mine/notes.txt").touch()
    open_run_folder(Path("mine"), resuming=False).release()


def test_a_path_that_cannot_be_a_folder_is_refused():
    Path("file").touch()
    assert refused(Path("file")).startswith("cannot make the run folder file")
    assert refused(Path("file/below")).startswith("cannot make the run folder file/below")


# Files


@pytest.fixture
def folder() -> RunFolder:
    return open_run_folder(Path("run"), resuming=False)


def test_config_yaml_holds_every_flag_and_reads_back(folder: RunFolder):
    resolved = CONFIG.replace(epochs=90)
    folder.write_config(CONFIG, resolved)
    content = yaml.safe_load((folder.path / "config.yaml").read_text())
    assert list(content) == [key for key in KEYS if key not in NOT_IN_FILE]
    assert not {"output_dir", "resume", "config", "local_rank"} & set(content)
    assert content["data_dir"] == "/set"
    assert content["epochs"] is None
    for name, config in (("config.yaml", CONFIG), ("resolved.yaml", resolved)):
        assert TrainConfig(**read_config_file(str(folder.path / name))) == config


@pytest.mark.parametrize("lr", [1e-5, 1e-10, 0.1, 1e16, 3.0])
def test_numbers_survive_yaml(lr: float):
    assert yaml.safe_load(to_yaml(TrainConfig(lr=lr)))["lr"] == lr


def test_status_says_state_reason_and_code(folder: RunFolder):
    folder.write_status("running")
    folder.write_status("failed", "why", 3)
    status = read_json(folder.path / "status.json")
    assert {key: status[key] for key in ("state", "why", "exit_code")} == {
        "state": "failed", "why": "why", "exit_code": 3,
    }  # fmt: skip
    assert [path.name for path in folder.path.iterdir() if "tmp" in path.name] == []


def test_each_start_is_remembered(folder: RunFolder):
    for start in range(3):
        folder.write_environment({"time": f"t{start}", "command": ["train.py", str(start)], "torch": "2"})
    facts = json.loads((folder.path / "environment.json").read_text())
    assert facts["time"] == "t2"
    assert facts["earlier_starts"] == [{"time": f"t{start}", "command": ["train.py", str(start)]} for start in (0, 1)]


def test_damaged_json_is_empty():
    Path("bad.json").write_text('{"a": ')
    Path("list.json").write_text("[1]")
    assert read_json(Path("bad.json")) == read_json(Path("list.json")) == read_json(Path("none.json")) == {}


def test_the_run_of_a_checkpoint(here: Path):
    run = make_run("one", 0)
    assert run_of_checkpoint(run / "checkpoints" / LAST) == run
    (here / "checkpoints").mkdir()
    assert run_of_checkpoint(here / "checkpoints" / LAST) is None
    assert run_of_checkpoint(run / "config.yaml") is None


# --resume auto


def test_the_newest_run_that_is_not_done_is_taken():
    assert next(find_resumable(CONFIG), None) is None
    make_run("z-oldest", 30)
    newest = make_run("b-newest", 10)
    make_run("c-older", 20, state="running")
    assert next(find_resumable(CONFIG)) == newest


@pytest.mark.parametrize(
    "newer",
    [
        {"state": "done"},
        {"saved": False},
        {"config": CONFIG.replace(lr=0.2)},
        {"config": CONFIG.replace(data_dir="/other")},
        {"config": CONFIG.replace(lr_milestones=(1.0, 3.0))},
        {"config": CONFIG.replace(channels_last=True)},
        {"config": CONFIG.replace(seed=1)},
    ],
)
def test_a_newer_run_that_is_done_or_asked_for_something_else_is_passed_over(newer: dict):
    mine = make_run("mine", 20)
    make_run("newer", 10, **newer)
    assert next(find_resumable(CONFIG)) == mine


def test_flags_that_change_no_result_may_differ():
    mine = make_run("mine", 10)
    asked = CONFIG.replace(
        workers=3, device="cpu", print_freq=1, tensorboard=False, output_dir="x", resume="auto", stop_after_steps=5
    )
    assert next(find_resumable(asked)) == mine


def test_a_locked_run_is_never_taken():
    older, newer = make_run("older", 20), make_run("newer", 10)
    running = open_run_folder(newer, resuming=True)
    assert next(find_resumable(CONFIG)) == older
    running.release()
    assert next(find_resumable(CONFIG)) == newer


def test_a_damaged_or_foreign_folder_below_runs_is_passed_over():
    mine = make_run("mine", 20)
    damaged = make_run("damaged", 10)
    (damaged / "config.yaml").write_text("lr: [\n")
    newer_version = make_run("later", 5)
    with (newer_version / "config.yaml").open("a") as file:
        file.write("a_key_of_tomorrow: 1\n")
    Path("runs/notes").mkdir()
    Path("runs/file").touch()
    assert next(find_resumable(CONFIG)) == mine


def test_another_folder_of_runs_can_be_searched(here: Path):
    make_run("mine", 20)
    assert next(find_resumable(CONFIG, here / "elsewhere"), None) is None
    assert next(find_resumable(CONFIG, here / "runs")) == here / "runs" / "mine"

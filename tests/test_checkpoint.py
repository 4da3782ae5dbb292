"""Checkpoints: whole or not at all, plain, contiguous, readable by and from other scripts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_models import tiny

from trainer.checkpoint import read_checkpoint, write_checkpoint
from trainer.errors import UserError


def test_a_missing_file_is_exit_2_and_names_what_lies_near(run, capsys):
    """R80."""
    assert run("--output-dir", "run") == 0
    capsys.readouterr()
    assert run("--resume", "run/checkpoints/nope.pt") == 2
    error = capsys.readouterr().err
    assert "run/checkpoints/nope.pt" in error
    assert "last.pt" in error
    assert error.count("\n") == 1


def test_a_file_holds_plain_types_and_contiguous_float32(run):
    """R50, R75, R81: loads with weights_only, anywhere, without a prefix."""
    assert run("--output-dir", "run", "--channels-last", "--opt-level", "O2") == 0
    content = torch.load("run/checkpoints/last.pt", weights_only=True)
    tensors = [*content["state_dict"].values(), *(entry["momentum_buffer"] for entry in content["optimizer"].values())]
    assert all(tensor.is_contiguous() for tensor in tensors)
    assert {tensor.dtype for tensor in tensors} <= {torch.float32, torch.int64}
    assert not any(name.startswith(("module.", "_orig_mod.")) for name in content["state_dict"])
    tiny(4).load_state_dict(content["state_dict"])
    assert content["classes"] == ["0", "1", "2", "3"]
    assert content["class_to_idx"]["3"] == 3
    assert (content["epoch"], content["step"], content["images_seen"]) == (1, 4, 32)


def test_best_and_last_are_both_there_and_load(run):
    assert run("--output-dir", "run", "--epochs", 2) == 0
    for name in ("last.pt", "best.pt"):
        assert read_checkpoint(Path("run/checkpoints", name))["step"] in (4, 8)
    assert not list(Path("run").rglob("*.tmp"))


def test_best_stays_when_last_is_replaced(tmp_path):
    write_checkpoint(tmp_path / "last.pt", {"a": 1}, also=[tmp_path / "best.pt"])
    write_checkpoint(tmp_path / "last.pt", {"a": 2})
    assert torch.load(tmp_path / "best.pt", weights_only=True) == {"a": 1}
    assert torch.load(tmp_path / "last.pt", weights_only=True) == {"a": 2}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.pt", "last.pt"]


def test_file_and_folder_are_synced_before_a_save_is_over(tmp_path, monkeypatch):
    import os
    import stat

    synced = []
    original = os.fsync

    def watched(handle: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        original(handle)

    monkeypatch.setattr(os, "fsync", watched)
    write_checkpoint(tmp_path / "last.pt", {"a": 1})
    assert synced == [False, True]


def test_a_save_that_breaks_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    """R74."""
    target = tmp_path / "last.pt"
    write_checkpoint(target, {"a": 1})

    def broken(content, stream):
        stream.write(b"half a file")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(OSError, match="disk full"):
        write_checkpoint(target, {"a": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]
    assert torch.load(target, weights_only=True) == {"a": 1}


def test_it_is_loaded_on_the_cpu(run, monkeypatch):
    """R73."""
    assert run("--output-dir", "run") == 0
    seen = []
    original = torch.load

    def watched(*args, **kwargs):
        seen.append((kwargs.get("map_location"), kwargs.get("weights_only")))
        return original(*args, **kwargs)

    monkeypatch.setattr(torch, "load", watched)
    assert run("--resume", "run", "--epochs", 2, base="") == 0
    assert seen
    assert set(seen) == {("cpu", True)}


@pytest.mark.parametrize("best", ["best_prec1", "best_acc1"])
def test_checkpoints_of_main_amp_and_pytorch_examples_are_read(run, capsys, best):
    torch.manual_seed(3)
    model = tiny(4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.randn(4, 3, 16, 16)).sum().backward()
    optimizer.step()
    theirs = {
        "epoch": 2,
        "arch": "toy_models:tiny",
        "state_dict": {f"module.{name}": value for name, value in model.state_dict().items()},
        best: torch.tensor(41.5),
        "optimizer": optimizer.state_dict(),
    }
    torch.save(theirs, "checkpoint.pth.tar")
    assert (
        run("--resume", "checkpoint.pth.tar", "--epochs", 3, "--output-dir", "run", "--lr", 0, "--channels-last") == 0
    )
    assert "another script" in capsys.readouterr().out
    content = torch.load("run/checkpoints/last.pt", weights_only=True)
    assert content["epoch"] == 3
    assert torch.equal(content["state_dict"]["head.weight"], model.state_dict()["head.weight"])
    assert content["best_acc1"] >= 41.5


def test_an_optimizer_of_another_shape_is_left_out_and_said(run, capsys):
    model = tiny(4)
    torch.save(
        {"epoch": 0, "state_dict": model.state_dict(), "optimizer": {"state": {0: {"momentum_buffer": torch.ones(9)}}}},
        "c.pth",
    )
    assert run("--resume", "c.pth", "--output-dir", "run") == 0
    assert "momentum starts from zero" in capsys.readouterr().out


@pytest.mark.parametrize(
    "content",
    [
        pytest.param({"state_dict": {}, "format": 1, "x": np.float64(1)}, id="a numpy scalar"),
        pytest.param([1, 2], id="a list"),
        pytest.param({"weights": 1}, id="no state dict"),
        pytest.param({"state_dict": {}, "format": 99}, id="a newer format"),
    ],
)
def test_what_cannot_be_read_safely_is_a_sentence(tmp_path, content):
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(UserError) as caught:
        read_checkpoint(tmp_path / "x.pt")
    assert "x.pt" in str(caught.value)


def test_a_truncated_file_is_a_sentence(tmp_path):
    write_checkpoint(tmp_path / "x.pt", {"state_dict": {"a": torch.zeros(1000)}, "format": 1})
    whole = (tmp_path / "x.pt").read_bytes()
    (tmp_path / "x.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="damaged"):
        read_checkpoint(tmp_path / "x.pt")


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_said_to_be_none(tmp_path, kind):
    path = tmp_path / "last.pt"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(UserError) as caught:
        read_checkpoint(path)
    assert str(caught.value) == f"--resume {path} is no file; {tmp_path} holds no checkpoint"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bytes(1000), "no file of tensors"),
        (b"", "no file of tensors"),
        (b"hello\n", "no file of tensors"),
        (b"{}", "no file of tensors"),
        (b"PK\3\4" + bytes(1000), "failed finding central directory"),
    ],
    ids=["zeros", "empty", "text", "braces", "half"],
)
def test_no_words_of_torchs_own_are_left_half(tmp_path, content, reason):
    path = tmp_path / "last.pt"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_checkpoint(path)
    assert str(caught.value).endswith(f"{reason})")
    assert "weights_only" not in str(caught.value)


def test_a_foreign_file_without_optimizer_or_counters_is_read(run):
    state = {name: value for name, value in tiny(4).state_dict().items() if "num_batches" not in name}
    torch.save({"epoch": 0, "state_dict": state, "optimizer": None}, "c.pth")
    assert run("--resume", "c.pth", "--output-dir", "run") == 0


def test_pytorch_examples_alexnet_keys_are_understood():
    from trainer.weights import strip_prefixes

    assert list(strip_prefixes({"features.module.0.weight": torch.ones(1), "classifier.1.bias": torch.ones(1)})) == [
        "features.0.weight", "classifier.1.bias",
    ]  # fmt: skip


def test_a_checkpoint_with_missing_parts_is_a_sentence(run, capsys):
    torch.save({"format": 1, "state_dict": {}, "config": {}}, "c.pt")
    assert run("--resume", "c.pt") == 2
    assert "lacks resolved" in capsys.readouterr().err


def test_a_modules_extra_state_survives_save_and_resume(run):
    assert run("-a", "toy_models:with_extra_state", "--output-dir", "run") == 0
    assert run("--resume", "run", "--epochs", 2, base="") == 0

"""scripts/export_weights.py: plain weights that other code loads, and the model as a torch.export program."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torchvision import models
from toy_models import tiny

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "scripts" / "bench")]

import export_weights  # noqa: E402

LAST = "run/checkpoints/last.pt"


def export(*arguments: object) -> int:
    return export_weights.main([str(argument) for argument in arguments])


def test_torchvisions_model_takes_the_weights_as_they_are(run, capsys) -> None:
    assert run("-a", "resnet18", "--channels-last", "--opt-level", "O2", "--output-dir", "run") == 0
    capsys.readouterr()
    assert export(LAST, "out.pth") == 0
    state = torch.load("out.pth", weights_only=True)
    assert all(isinstance(value, torch.Tensor) and value.is_contiguous() for value in state.values())
    models.resnet18(num_classes=4).load_state_dict(state, strict=True)
    saved = torch.load(LAST, weights_only=True)["state_dict"]
    assert all(torch.equal(state[name], value) for name, value in saved.items())
    count = sum(parameter.numel() for parameter in models.resnet18(num_classes=4).parameters())
    output = capsys.readouterr().out
    assert f"resnet18, 4 classes, {count} parameters; best Prec@1" in output
    assert "(these weights)" in output
    assert sorted(path.name for path in Path().iterdir()) == ["out.pth", "run"], "no temporary file stays"


def test_a_file_that_is_there_stays_without_force(run, capsys) -> None:
    assert run("--output-dir", "run") == 0
    Path("out.pth").write_text("mine")
    capsys.readouterr()
    assert export(LAST, "out.pth") == 2
    assert "--force" in capsys.readouterr().err
    assert Path("out.pth").read_text() == "mine"
    assert export(LAST, "out.pth", "--force") == 0
    tiny(4).load_state_dict(torch.load("out.pth", weights_only=True), strict=True)
    assert export(LAST, LAST, "--force") == 2, "never over the checkpoint itself"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["none.pt", "out.pth"], "no such file"),
        ([LAST], "nothing to write"),
        ([LAST, "out.pth", "--pt2", "./out.pth"], "name two files"),
        ([LAST, "nowhere/out.pth"], "no folder nowhere"),
        ([LAST, "out.pth", "--ema"], "no averaged weights"),
        (["foreign.pt", "out.pth"], "another script"),
        (["none.pt", "foreign.pt", "--force"], "no such file"),
    ],
)
def test_mistakes_are_a_sentence(run, capsys, arguments: list[str], part: str) -> None:
    assert run("--output-dir", "run") == 0
    torch.save({"state_dict": tiny(4).state_dict(), "epoch": 1, "arch": "toy_models:tiny"}, "foreign.pt")
    capsys.readouterr()
    assert export(*arguments) == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1
    assert not Path("out.pth").exists()


@pytest.mark.parametrize("followed", ["raw", "average"])
def test_an_accuracy_is_told_of_the_weights_that_have_it(run, capsys, followed: str) -> None:
    eval_flags = ["--ema-eval"] if followed == "average" else []
    assert run("--model-ema", *eval_flags, "--output-dir", "run") == 0
    told = {}
    for exported, flags in (("raw", []), ("average", ["--ema"])):
        capsys.readouterr()
        assert export(LAST, f"{exported}.pth", *flags) == 0
        told[exported] = capsys.readouterr().out.splitlines()[0]
    assert told.pop(followed).endswith("(these weights)")
    ((other, line),) = told.items()
    assert line.endswith(
        "(the average, which --ema exports; these are the raw weights)"
        if other == "raw"
        else "(the raw weights; this is their average)"
    )


@pytest.mark.parametrize("arch", ["toy_models:tiny", "mnasnet0_5"])
def test_ema_exports_the_average(run, arch) -> None:
    assert run("-a", arch, "--model-ema", 0.5, "--opt-level", "O2", "--output-dir", "run") == 0
    content = torch.load(LAST, weights_only=True)
    average = content["ema"]["state_dict"]
    assert any(not torch.equal(average[name], value) for name, value in content["state_dict"].items())
    assert export(LAST, "out.pth", "--ema") == 0
    state = torch.load("out.pth", weights_only=True)
    assert state.keys() == average.keys()
    assert all(torch.equal(state[name], value) for name, value in average.items())
    assert export(LAST, "raw.pth") == 0
    raw = torch.load("raw.pth", weights_only=True)
    assert all(torch.equal(raw[name], value) for name, value in content["state_dict"].items())


def test_a_checkpoint_whose_best_epoch_is_another_says_so(run, capsys) -> None:
    assert run("--output-dir", "run", "--epochs", 2) == 0
    content = torch.load(LAST, weights_only=True)
    torch.save({**content, "best_epoch": 0, "best_acc1": 12.5}, "later.pt")
    capsys.readouterr()
    assert export("later.pt", "out.pth") == 0
    assert (
        "best Prec@1 12.500 at epoch 0 (not necessarily these weights: they are of step 8)" in capsys.readouterr().out
    )


def test_the_program_computes_what_the_model_does_for_any_batch(run, capsys) -> None:
    assert run("--output-dir", "run", "--channels-last") == 0
    assert export(LAST, "--pt2", "out.pt2") == 0
    about = {"preprocessing.json": ""}
    program = torch.export.load("out.pt2", extra_files=about).module()
    model = tiny(4)
    model.load_state_dict(torch.load(LAST, weights_only=True)["state_dict"])
    for count in (1, 3, 7):
        images = torch.randn(count, 3, 32, 32)
        assert torch.allclose(program(images), model.eval()(images), atol=1e-5)
    read = json.loads(about["preprocessing.json"])
    assert (read["val_image_size"], read["arch"], read["classes"]) == (32, "toy_models:tiny", ["0", "1", "2", "3"])


def test_a_program_that_computes_something_else_is_not_written(run, capsys, monkeypatch) -> None:
    assert run("--output-dir", "run") == 0
    load = torch.export.load

    def changed(stream):
        program = load(stream)
        next(iter(program.state_dict.values())).data.mul_(-1)
        return program

    monkeypatch.setattr(torch.export, "load", changed)
    capsys.readouterr()
    assert export(LAST, "--pt2", "out.pt2") == 1
    assert "differs from the model" in capsys.readouterr().err
    assert not Path("out.pt2").exists()

"""scripts/audit_layout.py and train.py --audit-layout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchvision

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import audit_layout as script  # noqa: E402

from trainer.layout_audit import step  # noqa: E402

SMALL = ("--num-classes", "4", "--device", "cpu", "--input-shape", "3,6,6")


def test_resnet50_keeps_channels_last_in_both_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        script.main(
            ["-a", "resnet50", "--device", "cpu", "--image-size", "64", "--strict", "--json", str(tmp_path / "a")]
        )
        == 0
    )
    line = capsys.readouterr().out.strip()
    assert "\n" not in line
    assert line.startswith("resnet50 2x3x64x64 O0 train on cpu")
    assert ": 0 of " in line
    found = json.loads((tmp_path / "a").read_text())
    assert (found["clean"], found["lost"], found["state"]) == (True, [], [])
    assert found["torch"] == torch.__version__
    assert all(found["counts"][name]["kept"] > 100 for name in ("forward", "backward"))


def test_a_loss_is_a_row_with_advice_and_fails_under_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["-a", "layout_models:shuffle", *SMALL, "--json", str(tmp_path / "a.json")]) == 0
    summary, head, *rows = capsys.readouterr().out.splitlines()
    assert "2 of " in summary
    assert "forward 1 of " in summary
    assert "backward 1 of " in summary
    assert head.split()[:4] == ["MiB", "times", "module", "pass"]
    assert [row.split()[2:4] for row in rows[:2]] == [["stage.0", "forward"], ["stage.0", "backward"]]
    assert rows[2].startswith("reshape: ")
    found = json.loads((tmp_path / "a.json").read_text())
    assert [row["module"] for row in found["by_module"]] == ["stage.0", "stage.0"]
    assert found["lost"][0]["operands"][0]["shape"] == [2, 4, 2, 6, 6]
    assert script.main(["-a", "layout_models:shuffle", *SMALL, "--strict"]) == 1


def test_a_model_that_refuses_channels_last_is_reported_not_traced(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["-a", "layout_models:view", *SMALL]) == 1
    out, err = capsys.readouterr()
    assert "view in head" in out
    assert "layout_models.py:" in out
    assert "use reshape" in out
    assert "Traceback" not in out + err


def test_a_refusal_that_the_model_catches_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["-a", "layout_models:caught", *SMALL, "--strict"]) == 0
    out = capsys.readouterr().out
    assert ": 0 of" in out
    assert "refuses" not in out


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_caught_refusal_hides_no_later_error(mode: str) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2|size"):
        script.main(["-a", "layout_models:caught_then_broken", *SMALL, "--mode", mode])


def test_a_backward_pass_that_refuses_channels_last_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["-a", "layout_models:refuses_gradient", *SMALL]) == 1
    out, err = capsys.readouterr()
    assert "view in stage.0" in out
    assert "stopped the pass" in out
    assert "Traceback" not in out + err


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_half_precision_and_evaluation(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["-a", "layout_models:flatten", *SMALL, "--opt-level", level, "--amp-dtype", "bfloat16"]
    assert script.main(flags) == 0
    assert f"2x3x6x6 {level} bfloat16 train" in capsys.readouterr().out
    assert script.main([*flags, "--mode", "eval"]) == 0
    out = capsys.readouterr().out
    assert "forward 1 of" in out
    assert "backward" not in out


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "give -a ARCH or --all-torchvision"),
        (["-a", "resnet18", "--all-torchvision"], "give -a ARCH or"),
        (["-a", "resnet18", "--input-shape", "3,4"], "C,H,W"),
        (["-a", "resnet18", "--input-shape", "3,4,4", "--image-size", "4"], "give one of them"),
        (["-a", "resnet18", "--markdown", "x"], "--all-torchvision"),
        (["-a", "resnet18", "--compile", "--mode", "eval"], "drop --mode eval"),
        (["-a", "resnet81"], "did you mean"),
        (["-a", "toy_misfits:in_a_dict", *SMALL], "the model returned a dict with 'out': its forward()"),
        (["-a", "toy_misfits:nothing", *SMALL], "the model returned nothing"),
        (["-a", "toy_misfits:nothing", *SMALL, "--mode", "eval"], "the model returned nothing"),
        (["-a", "toy_misfits:without_classes", *SMALL], "which it does not take"),
        (["-a", "toy_misfits:lazy", *SMALL], "lazy"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(flags: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(flags) == 2
    err = capsys.readouterr().err
    assert text in err
    assert len(err.splitlines()) == 1


def test_the_table_of_all_models_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torchvision.models, "list_models", lambda module=None: ["squeezenet1_1", "shufflenet_v2_x0_5"])
    flags = ["--all-torchvision", "--device", "cpu", "--image-size", "64"]
    flags += ["--json", str(tmp_path / "all.json"), "--markdown", str(tmp_path / "all.md")]
    assert script.main(flags) == 0
    page = (tmp_path / "all.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| shufflenet")]
    assert [cell.split("/")[0].strip() for cell in row.split("|")[3:5]] == ["16", "16"]
    assert "`clone` in stage2.0, torchvision/models/shufflenetv2.py:" in row
    assert torch.__version__ in page
    assert "squeezenet1_1:" in capsys.readouterr().out
    assert script.main(flags) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "all.md").read_text() == page


@pytest.mark.slow
@pytest.mark.parametrize("arch", torchvision.models.list_models(module=torchvision.models))
def test_every_torchvision_model_goes_through(arch: str) -> None:
    """Without an optimizer's state, which the largest models need gigabytes for; 224 pixels where a model insists."""
    from trainer.layout_audit import audit_layout
    from trainer.models import TrainingLoss, build_model

    size = 299 if arch == "inception_v3" else 224 if arch.startswith(("vit", "maxvit")) else 96
    model = build_model(arch, 10).to(memory_format=torch.channels_last)
    images = torch.rand(2, 3, size, size).to(memory_format=torch.channels_last)
    with audit_layout(model) as audit:
        TrainingLoss()(model(images), torch.tensor([0, 1])).backward()
    assert audit.counts["forward"].kept
    assert audit.refused == []
    if arch.startswith(("resnet", "resnext", "wide_resnet", "mnasnet", "regnet", "densenet", "squeezenet")):
        assert audit.lost == []


def test_what_compiled_code_has_in_another_order_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what one side alone has."""
    images = torch.zeros(2, 3, 4, 4)
    sides = {
        False: {"output": images, "same": images, "gone": images},
        True: {"output": images.to(memory_format=torch.channels_last), "same": images, "new": images},
    }
    monkeypatch.setattr(step, "_strides", lambda *_, compiled: sides[compiled])
    found = step.compare_compiled(torch.nn.Identity(), (images, images), None)  # type: ignore[arg-type]
    contiguous, channels_last = (48, 16, 4, 1), (48, 1, 12, 3)
    assert found == [("output", contiguous, channels_last), ("gone", contiguous, ()), ("new", (), contiguous)]


@pytest.mark.slow
def test_compiled_strides_are_compared_with_eager(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    pairs: list[dict[str, torch.Tensor]] = []
    inner = step._strides
    monkeypatch.setattr(step, "_strides", lambda *a, **k: pairs.append(inner(*a, **k)) or pairs[-1])
    words = ["-a", "toy_models:tiny", "--input-shape", "3,8,8", "--device", "cpu", "--compile", "--strict"]
    assert script.main(words) == 0
    assert ": 0 of" in capsys.readouterr().out
    assert len(pairs) == 2
    assert pairs[0].keys() == pairs[1].keys() != set()


Run = Callable[..., int]
AUDITED = ("--channels-last", "true", "--device", "cpu", "--output-dir")


def weights_of(folder: str) -> dict[str, torch.Tensor]:
    return torch.load(f"{folder}/checkpoints/last.pt", weights_only=True)["state_dict"]


@pytest.mark.parametrize("arch", ["toy_models:dropping", "layout_models:mixed32"])
def test_a_run_is_bitwise_the_same_with_the_audit(run: Run, arch: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("-a", arch, "--workers", "0", "--seed", "3")
    assert run(*flags, *AUDITED, "audited", "--audit-layout", "--tensorboard", "true") == 0
    out = capsys.readouterr().out
    assert run(*flags, *AUDITED, "plain", "--audit-layout", "false") == 0
    assert out.count("layout audit: ") == 1
    assert "layout audit" not in capsys.readouterr().out
    audited, plain = weights_of("audited"), weights_of("plain")
    assert all(torch.equal(audited[name], plain[name]) for name in plain)
    lines = [
        [{k: v for k, v in json.loads(line).items() if k in ("loss", "grad_norm", "val_loss", "step")} for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
        for folder in ("audited", "plain")
    ]  # fmt: skip
    assert lines[0] == lines[1]
    found = json.loads(Path("audited/layout_audit.json").read_text())
    assert bool(found["lost"]) == (arch != "toy_models:dropping")
    assert not Path("plain/layout_audit.json").exists()


def test_the_details_are_in_tensorboard(run: Run) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run("-a", "layout_models:mixed32", *AUDITED, "out", "--audit-layout", "--tensorboard", "true") == 0
    events = EventAccumulator("out")
    events.Reload()
    (text,) = events.Tensors("layout_audit/text_summary")
    assert b"stage.0" in text.tensor_proto.string_val[0]


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, True), (0.3, False)]
)  # four times that: under a second, over a second
def test_the_line_comes_by_default_where_it_is_cheap(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seconds: float, said: bool
) -> None:
    monkeypatch.setattr("trainer.timing.StepTimer.compute_seconds", lambda self: seconds)
    assert run(*AUDITED, "out") == 0
    assert ("layout audit: 0 of" in capsys.readouterr().out) == said
    assert not Path("out/layout_audit.json").exists()


def test_no_line_in_contiguous_runs_or_under_step_times(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainer.timing.StepTimer.compute_seconds", lambda self: 0.0)
    assert run("--channels-last", "false", "--device", "cpu") == 0
    assert run(*AUDITED, "out", "--step-times") == 0
    assert "layout audit" not in capsys.readouterr().out


def test_a_model_that_cannot_be_copied_trains_all_the_same(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-a", "layout_models:no_copy", *AUDITED, "out", "--audit-layout") == 0
    assert "no layout audit: a copy of the model raised TypeError: not this one" in capsys.readouterr().out


@pytest.mark.parametrize("factory", ["in_a_dict", "nothing", "without_classes", "lazy"])
def test_a_model_that_cannot_be_trained_ends_with_one_sentence(
    run: Run, factory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("-a", f"toy_misfits:{factory}", *AUDITED, "out") == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--audit-layout",), "add --channels-last true"),
        (("--audit-layout", "--channels-last", "true", "-e"), "--evaluate"),
    ],
)
def test_flags_that_leave_nothing_to_audit_are_refused(
    run: Run, flags: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*flags) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["-a", "resnet18", "--input-shape", "1,64,64"], "cannot take a batch of (2, 1, 64, 64)"),
        (["-a", "resnet18", "--input-shape", "1,3,32,32"], "Expected more than 1 value per channel"),
        (["-a", "alexnet", "--image-size", "8"], "cannot take a batch of (2, 3, 8, 8)"),
        (["-a", "resnet18", "--json", "/proc/x/y.json"], "--json /proc/x/y.json cannot be written"),
        (["--all-torchvision", "--json", "damaged.json"], "damaged.json is no table"),
        (["--all-torchvision", "--json", "other.json"], "holds alexnet audited with O2, eval"),
    ],
)
def test_mistakes_are_one_sentence(words, part, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("damaged.json").write_text("[1")
    row = {"precision": "O2 bfloat16", "mode": "eval", "torch": torch.__version__, "torchvision": "0.1"}
    Path("other.json").write_text(json.dumps({"alexnet": row}))
    assert script.main([*words, "--device", "cpu"]) == 2
    error = capsys.readouterr().err.strip()
    assert part in error
    assert "\n" not in error

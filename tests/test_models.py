"""Names -> models, and the loss of models with auxiliary heads."""

from __future__ import annotations

import importlib
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import toy_models
from helpers import refused
from torch import nn
from torchvision import models as zoo

from trainer.models import TrainingLoss, build_model, main_output
from trainer.weights import Preset, load_weights, preset_of


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, from which a factory is found; the import path comes back as it was."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


# Names


def test_a_torchvision_name_with_a_head_of_the_asked_size():
    """R20; on the CPU, contiguous, float32."""
    model = build_model("squeezenet1_1", 3)
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert all(parameter.is_contiguous() for parameter in model.parameters())


def test_models_are_equal_by_seed():
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(build_model("squeezenet1_1", 3).state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.parametrize("arch", ["googlenet", "inception_v3"])
def test_models_with_auxiliary_heads_are_built_without_a_warning(arch: str, recwarn: pytest.WarningsRecorder):
    with torch.device("meta"):
        model = build_model(arch, 3)
    assert not recwarn.list
    assert model.aux_logits
    assert model.fc.out_features == 3


def test_an_unknown_name_ends_with_the_near_ones():
    message = refused(build_model, "resnet51", 10)
    assert message.startswith("no architecture 'resnet51' in torchvision; did you mean ")
    assert "resnet50" in message
    assert "package.module:factory" in refused(build_model, "zzzzzz", 10)


def test_detection_and_segmentation_models_are_no_classifiers():
    refused(build_model, "fasterrcnn_resnet50_fpn", 10)


def test_a_factory_is_found_from_the_current_folder(here: Path):
    package = here / "my_package_of_models"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "nets.py").write_text(
        "from torch import nn\n\ndef net(num_classes):\n    return nn.Linear(5, num_classes)\n"
    )
    assert build_model("my_package_of_models.nets:net", 7).out_features == 7


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("no_such_module:net", "no module 'no_such_module' in {here} or on PYTHONPATH"),
        ("no_such_package.nets:net", "no module 'no_such_package'"),
        ("toy_models.deeper:net", "no module 'toy_models.deeper'"),
        ("toy_models:no_such_net", "toy_models.py has no function 'no_such_net'"),
        ("toy_models:", "has no function ''"),
        ("toy_models:nn", "has no function 'nn'"),
        (":net", "'' is no module name"),
        (".nets:net", "'.nets' is no module name"),
        ("nets.py:net", None),
        ("sys:net", "sys has no function 'net'"),
        ("builtins:dict", "returned a dict, not a torch.nn.Module"),
        ("toy_misfits:without_classes", "without_classes(num_classes=N), which it does not take"),
        ("toy_misfits:lazy", "0.weight has no shape yet"),
    ],
)
def test_a_wrong_factory_is_named(here: Path, arch: str, expected: str | None):
    message = refused(build_model, arch, 3)
    assert message.startswith(f"--arch {arch}")
    assert expected is None or expected.format(here=here) in message


def test_an_error_inside_a_users_module_stays_theirs(here: Path):
    (here / "broken_nets.py").write_text("import broken_ne\n")
    with pytest.raises(ModuleNotFoundError, match="broken_ne'"):
        build_model("broken_nets:net", 3)


def test_a_type_error_inside_a_factory_stays_theirs(here: Path):
    (here / "raising_nets.py").write_text("def net(num_classes):\n    return len(num_classes)\n")
    with pytest.raises(TypeError, match="len"):
        build_model("raising_nets:net", 3)


def test_an_output_that_is_indexed_as_a_tuple_gives_its_first(here: Path):
    class Output(dict):
        def __getitem__(self, key: object) -> object:
            return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)

    logits = torch.zeros(1, 2)
    assert main_output(Output(logits=logits)) is logits
    assert main_output((logits, None)) is logits


@pytest.mark.parametrize(
    ("output", "what"),
    [({"out": torch.zeros(1, 2)}, "a dict with 'out'"), ({}, "no keys"), (None, "nothing"), ([], "a list"), ((None,), "a tuple")],
)  # fmt: skip
def test_an_output_without_logits_is_named(output: object, what: str):
    assert what in refused(main_output, output)


# timm


@pytest.fixture
def fake_timm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    timm = SimpleNamespace(
        __version__="1.0",
        is_model=lambda name: name in ("net", "net.tag"),
        create_model=lambda name, num_classes=1000, pretrained=False: toy_models.tiny(num_classes),
        models=SimpleNamespace(
            get_pretrained_cfg=lambda name: SimpleNamespace(
                input_size=(3, 288, 288), crop_pct=0.9, interpolation="bicubic", mean=(0.5,) * 3, std=(0.4,) * 3
            )
        ),
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    return timm


def test_without_timm_the_pip_line_is_told(monkeypatch: pytest.MonkeyPatch):
    real = importlib.import_module

    def no_timm(name: str, *rest):
        if name == "timm":
            raise ModuleNotFoundError("No module named 'timm'", name="timm")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", no_timm)
    assert "pip install timm" in refused(build_model, "timm:resnet50", 3)
    assert "pip install timm" in refused(preset_of, "timm:resnet50", True, None)
    assert preset_of("timm:resnet50", False, None) == Preset()


def test_timm_models_and_their_preset(fake_timm: SimpleNamespace):
    model = build_model("timm:net", 3)
    assert model.head.out_features == 3
    assert preset_of("timm:net.tag", True, None) == Preset(288, 320, "bicubic", (0.5,) * 3, (0.4,) * 3)
    line = load_weights(model, "timm:net", True, None)
    assert "the head is new (head.weight, head.bias), the rest is loaded" in line
    assert refused(build_model, "timm:nett", 3) == "no architecture 'nett' in timm 1.0"


# Loss

InceptionOutputs = namedtuple("InceptionOutputs", ["logits", "aux_logits"])
GoogLeNetOutputs = namedtuple("GoogLeNetOutputs", ["logits", "aux_logits2", "aux_logits1"])


@pytest.mark.parametrize(
    ("kind", "weight"), [(InceptionOutputs, 0.4), (GoogLeNetOutputs, 0.3)], ids=["inception", "googlenet"]
)
def test_auxiliary_outputs_have_their_published_weight(kind: type, weight: float):
    """R94."""
    assert kind.__name__ in {type_.__name__ for type_ in (zoo.InceptionOutputs, zoo.GoogLeNetOutputs)}
    assert kind._fields == getattr(zoo, kind.__name__)._fields
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(4, 3, generator=generator) for _ in kind._fields]
    target = torch.tensor([0, 1, 2, 1])
    losses = [nn.functional.cross_entropy(part, target) for part in parts]
    assert TrainingLoss()(kind(*parts), target) == pytest.approx(float(losses[0] + weight * sum(losses[1:])))
    assert TrainingLoss()(kind(parts[0], *[None] * (len(parts) - 1)), target) == losses[0]
    assert main_output(kind(*parts)) is parts[0]
    assert main_output(parts[0]) is parts[0]


def test_the_loss_is_float32_and_smoothed():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).bfloat16()
    target = torch.tensor([0, 1, 2, 1])
    loss = TrainingLoss(0.1)(logits, target)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, nn.functional.cross_entropy(logits.float(), target, label_smoothing=0.1))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-a", "vit_b_16"], "-a vit_b_16 does not take a training batch of 8, at 32 pixels: Wrong image height!"),
        (["-a", "vit_b_16", "--summary"], "does not take a training batch of 8, at 32 pixels"),
        (["-a", "vit_b_16", "-e", "--pretrained", "false"], "at 32 pixels"),
        (["-a", "resnet18", "-b", 1, "--image-size", 2, "--val-image-size", 32], "a training batch of 1, at 2 pixels: Expected more than 1 value"),
    ],
)  # fmt: skip
def test_images_that_a_model_of_torchvision_does_not_take_are_a_sentence(run, capsys, flags, said) -> None:
    assert run(*flags, "--output-dir", "run") == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_error_in_the_users_own_model_keeps_its_traceback(run, capsys) -> None:
    assert run("-a", "toy_misfits:too_narrow", "--output-dir", "run") == 1
    assert "Traceback" in capsys.readouterr().err


def test_another_error_beside_a_model_of_torchvision_keeps_its_traceback(run, capsys, monkeypatch) -> None:
    """Even where the model would refuse images of that size too."""

    def lost(*_: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr("trainer.engine.Engine.fit", lost)
    assert run("-a", "vit_b_16", "--output-dir", "run") == 1
    assert "something else" in capsys.readouterr().err

"""Weights, by name and from files: what they load into, what they ask of the images, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import toy_models
from helpers import refused
from torch import nn
from torchvision import models as zoo

from trainer.levels import level_options
from trainer.models import build_model
from trainer.precision import Precision
from trainer.weights import Preset, load_matching, load_weights, preset_of, strip_prefixes, weights_from_file

TOY = "toy_models:tiny"


# Named weights: no download, torchvision's file is made up


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, torch.Tensor]]:
    """What torchvision's server holds, by the file's name up to its hash."""
    files: dict[str, dict[str, torch.Tensor]] = {}
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda url, *_, **__: files[_stem(url)])
    return files


def _stem(url: str) -> str:
    return url.rpartition("/")[2].rpartition("-")[0]


def filled(arch: str, value: float = 0.25) -> dict[str, torch.Tensor]:
    with torch.device("meta"):
        state = zoo.get_model(arch, weights=None, init_weights=False).state_dict() if arch == "googlenet" else None
        state = zoo.get_model(arch, weights=None).state_dict() if state is None else state
    return {name: torch.full(tensor.shape, value).to(tensor.dtype) for name, tensor in state.items()}


def test_pretrained_weights_without_batch_counts_load_and_the_head_is_new(hub):
    """R20. The file of resnet18 is older than batch norm's num_batches_tracked."""
    state = filled("resnet18")
    hub["resnet18"] = {name: value for name, value in state.items() if "num_batches" not in name}
    model = build_model("resnet18", 3)
    head = model.fc.weight.detach().clone()
    line = load_weights(model, "resnet18", True, None)
    assert line == (
        "=> using pre-trained model 'resnet18' (ResNet18_Weights.IMAGENET1K_V1): "
        "the head is new (fc.weight, fc.bias), the rest is loaded"
    )
    assert torch.equal(model.fc.weight, head)
    assert (model.layer4[1].conv2.weight == 0.25).all()
    model = build_model("resnet18", 1000)
    assert load_weights(model, "resnet18", False, "IMAGENET1K_V1").endswith("all weights loaded")
    assert (model.fc.weight == 0.25).all()


def test_old_spellings_in_torchvisions_files_load(hub):
    """densenet's file has `norm.1.weight` for `norm1.weight`."""
    state = filled("densenet121")
    hub["densenet121"] = {
        name.replace(".norm1.", ".norm.1.").replace(".conv2.", ".conv.2."): value
        for name, value in state.items()
        if "num_batches" not in name
    }
    model = build_model("densenet121", 3)
    assert "the head is new" in load_weights(model, "densenet121", True, None)
    assert (model.features.denseblock1.denselayer1.norm1.weight == 0.25).all()


def test_googlenet_takes_its_weights_and_three_new_heads(hub, recwarn: pytest.WarningsRecorder):
    hub["googlenet"] = filled("googlenet")
    with torch.device("meta"):
        model = build_model("googlenet", 3)
    line = load_weights(model.to_empty(device="cpu"), "googlenet", True, None)
    assert (
        "the head is new (aux1.fc2.weight, aux1.fc2.bias, aux2.fc2.weight, aux2.fc2.bias, fc.weight, fc.bias)" in line
    )
    assert not recwarn.list


def test_mnasnet_loads_its_own_weights():
    """It refuses a state dict without module versions, and a file of plain tensors has none."""
    model, other = build_model("mnasnet0_5", 3), build_model("mnasnet0_5", 3)
    state = dict(model.state_dict())
    assert load_matching(other, state) == "all weights loaded"
    assert torch.equal(other.classifier[1].weight, model.classifier[1].weight)
    precision = Precision(level_options("O0", torch.bfloat16), torch.bfloat16, torch.device("cpu"))
    other = build_model("mnasnet0_5", 3)
    precision.load_model_state(other, state)
    assert torch.equal(other.classifier[1].weight, model.classifier[1].weight)


@pytest.mark.parametrize(
    ("arch", "pretrained", "weights", "expected"),
    [
        ("resnet50", True, None, Preset(224, 232, "bilinear", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
        (
            "resnet50",
            False,
            "IMAGENET1K_V1",
            Preset(224, 256, "bilinear", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ),
        ("efficientnet_b3", True, None, Preset(300, 320, "bicubic", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
        ("resnet50", False, None, Preset()),
        ("no_such_net", True, None, Preset()),
    ],
)
def test_presets_of_weights(arch: str, pretrained: bool, weights: str | None, expected: Preset):
    assert preset_of(arch, pretrained, weights) == expected


@pytest.mark.parametrize(("arch", "size"), [("inception_v3", 299), ("googlenet", 224)])
def test_the_inceptions_weights_ask_for_images_in_minus_one_to_one(arch: str, size: int):
    """torchvision turns ImageNet's normalisation into this one inside the model, where weights are given at its birth."""
    preset = preset_of(arch, True, None)
    assert (preset.crop_size, preset.mean, preset.std) == (size, (0.5,) * 3, (0.5,) * 3)
    image = torch.rand(2, 3, 4, 4)
    with torch.device("meta"):
        model = zoo.get_model(arch, weights=None, init_weights=False, transform_input=True)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    assert torch.allclose(model._transform_input((image - mean) / std), (image - 0.5) / 0.5, atol=1e-6)


def test_weights_of_an_unknown_name_are_refused_with_the_known():
    message = refused(preset_of, "resnet50", False, "IMAGENET1K_V9")
    assert "IMAGENET1K_V1, IMAGENET1K_V2" in message
    assert "give --weights a file" in refused(preset_of, TOY, True, None)


# Weights files


@pytest.mark.parametrize("key", [None, "state_dict", "model"])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_weights_files_of_other_scripts_load(tmp_path: Path, key: str | None, prefix: str):
    source, model = toy_models.tiny(3), toy_models.tiny(3)
    state = {prefix + name: value for name, value in source.state_dict().items()}
    torch.save({key: state, "epoch": 3} if key else state, tmp_path / "weights.pt")
    line = load_weights(model, TOY, False, str(tmp_path / "weights.pt"))
    assert line == f"=> using pre-trained model '{TOY}' ({tmp_path}/weights.pt): all weights loaded"
    assert torch.equal(model.head.weight, source.head.weight)


def test_files_older_than_batch_norms_count_of_batches_load(tmp_path: Path):
    source, model = toy_models.tiny(3), toy_models.tiny(3)
    state = {name: value for name, value in source.state_dict().items() if "num_batches" not in name}
    torch.save(state, tmp_path / "weights.pt")
    assert load_weights(model, TOY, False, str(tmp_path / "weights.pt")).endswith("all weights loaded")
    assert torch.equal(model.head.weight, source.head.weight)


def test_weights_with_another_class_count_keep_a_new_head(tmp_path: Path):
    """R20."""
    torch.save(toy_models.tiny(10).state_dict(), tmp_path / "weights.pt")
    model = toy_models.tiny(3)
    before = model.head.weight.detach().clone()
    line = load_weights(model, TOY, False, str(tmp_path / "weights.pt"))
    assert line.endswith("the head is new (head.weight, head.bias), the rest is loaded")
    assert torch.equal(model.head.weight, before)


def test_weights_keep_the_models_strides(tmp_path: Path):
    model = toy_models.tiny(3).to(memory_format=torch.channels_last)
    load_matching(model, toy_models.tiny(3).state_dict())
    assert model.features[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda state: state.pop("head.bias"), "the file lacks head.bias"),
        (lambda state: state.update(extra=torch.zeros(1)), "the file holds unknown extra"),
        (lambda state: state.update({"head.weight": torch.zeros(3, 14)}), "head.weight has shape (3, 14)"),
    ],
)
def test_weights_of_another_model_are_refused(change, expected: str):
    state = dict(toy_models.tiny(3).state_dict())
    change(state)
    model = toy_models.tiny(3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert refused(load_matching, model, state) == f"these weights do not fit the model: {expected}"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"not a pickle", "is no readable weights file"),
        ({"state_dict": {"a": 1}}, "holds no state dict"),
        ([1, 2], "holds no state dict"),
        (nn.Linear(1, 1), "is no readable weights file"),
    ],
)
def test_a_file_without_weights_is_refused(tmp_path: Path, content: object, expected: str):
    path = tmp_path / "weights.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    assert expected in refused(weights_from_file, str(path))


def test_a_missing_file_is_refused(tmp_path: Path):
    model = toy_models.tiny(3)
    assert "neither a file nor the name" in refused(load_weights, model, TOY, False, f"{tmp_path}/none.pt")


def test_no_weights_no_line():
    assert load_weights(toy_models.tiny(3), TOY, False, None) is None


def test_prefixes_go_only_where_every_name_has_them():
    tensor = torch.zeros(1)
    mixed = {"module.a": tensor, "b": tensor}
    assert strip_prefixes(mixed) == mixed
    assert strip_prefixes({}) == {}


def test_torchvisions_own_spelling_of_a_name_is_understood():
    assert preset_of("resnet50", False, "ResNet50_Weights.IMAGENET1K_V2") == preset_of(
        "resnet50", False, "IMAGENET1K_V2"
    )
    assert "IMAGENET1K_V1" in refused(preset_of, "resnet50", False, "ResNet18_Weights.IMAGENET1K_V1")


def test_a_checkpoint_of_ours_brings_the_input_it_was_trained_on(tmp_path: Path):
    resolved = {
        "val_image_size": 96,
        "val_resize": 110,
        "interpolation": "bicubic",
        "mean": (0.5,) * 3,
        "std": (0.4,) * 3,
    }
    path = tmp_path / "last.pt"
    torch.save({"state_dict": toy_models.tiny(3).state_dict(), "resolved": resolved}, path)
    assert preset_of(TOY, False, str(path)) == Preset(96, 110, "bicubic", (0.5,) * 3, (0.4,) * 3)
    torch.save(toy_models.tiny(3).state_dict(), tmp_path / "bare.pt")
    assert preset_of(TOY, False, str(tmp_path / "bare.pt")) == Preset()

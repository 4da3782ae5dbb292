"""Our validation input for torchvision's named weights is what their own transforms give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import write_image
from pictures import photo
from torchvision import models as zoo

from data.build import DataOptions
from data.collate import HostBatch
from data.dataset import ImageDataset
from data.decode import Decoder
from data.feed import DeviceFeed, FeedOptions
from data.folder import scan_data_dir
from data.transforms import ValTransform
from trainer.config import TrainConfig, pick
from trainer.distributed import Ranks
from trainer.models import build_model
from trainer.resolve import resolve_config
from trainer.weights import load_weights

CPU = torch.device("cpu")
SIZES = [
    (375, 500),
    (500, 375),
    (333, 500),
    (480, 640),
    (300, 300),
    (1200, 900),
    (768, 1024),
    (260, 700),
    (500, 500),
    (232, 236),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    write_image(folder / "train/a/000.jpg")
    (folder / "val/a").mkdir(parents=True)
    for number, (height, width) in enumerate(SIZES):
        photo(height, width, number).save(folder / f"val/a/{number:02d}.jpg", quality=92)
    return folder


def ours(config: TrainConfig, folder: Path) -> torch.Tensor:
    """(10, 3, crop, crop) float32: all of val as a run with this configuration sees it."""
    options = pick(DataOptions, config)
    transform = ValTransform(options.val_image_size, options.val_resize, options.interpolation)
    batch: HostBatch = ImageDataset(scan_data_dir(str(folder))[1], Decoder(), transform).__getitems__(
        [(0, index) for index in range(len(SIZES))]
    )
    assert config.std is not None
    feed = FeedOptions(CPU, config.mean or (), config.std, torch.float32, torch.contiguous_format)
    ((images, _),) = DeviceFeed([(batch.images, batch.target)], feed)
    return images


@torch.no_grad()
def taught(arch: str, images: torch.Tensor) -> torch.nn.Module:
    """A random model with batch-norm statistics and a head made for ``images`` (N, 3, H, W): it tells each from the
    others, image k being class k."""
    torch.manual_seed(0)
    model = build_model(arch, 1000).train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # the mean of all batches
    model(images)
    head = [module for module in model.eval().modules() if isinstance(module, torch.nn.Linear)][-1]
    seen: list[torch.Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(images)
    handle.remove()
    middle = seen[0].mean(0)
    head.weight.zero_()
    head.weight[: len(images)] = torch.nn.functional.normalize(seen[0] - middle)
    head.bias.copy_(-head.weight @ middle)
    return model


@pytest.mark.parametrize(
    ("arch", "name", "mode"),
    [
        ("resnet18", "IMAGENET1K_V1", "bilinear"),
        ("resnet50", "IMAGENET1K_V2", "bilinear"),
        ("efficientnet_b0", "IMAGENET1K_V1", "bicubic"),
    ],
)
def test_input_and_answers_are_those_of_torchvisions_transforms(photos, tmp_path, arch, name, mode):
    from PIL import Image

    config = TrainConfig(data_dir=str(photos), arch=arch, weights=name, workers=0, device="cpu")
    config = resolve_config(config, CPU, Ranks(), 1)[0]
    assert config.interpolation == mode
    transform = zoo.get_weight(f"{zoo.get_model_weights(arch).__name__}.{name}").transforms()
    files = sorted(photos.glob("val/a/*.jpg"))
    theirs = torch.stack([transform(Image.open(file).convert("RGB")) for file in files])
    found = ours(config, photos)
    assert found.shape == theirs.shape
    std = torch.tensor(config.std).view(3, 1, 1)
    difference = ((found - theirs) * std).abs().mean((1, 2, 3))
    assert difference.max() <= 2 / 255, difference * 255
    # The weights come from a file: nothing is downloaded.
    torch.save(taught(arch, theirs).state_dict(), tmp_path / "weights.pth")
    model = build_model(arch, 1000)
    load_weights(model, arch, False, str(tmp_path / "weights.pth"))
    with torch.no_grad():
        answers, expected = model.eval()(found).argmax(1), model(theirs).argmax(1)
    assert answers.tolist() == expected.tolist() == list(range(len(SIZES)))

"""What stands in for a batch with too few readable images looks like the batch in all but its pixels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import toy_models
from dirty_files import write_empty
from helpers import make_folder
from torch import Tensor, nn

from data.sampler import StepSampler
from trainer.step import Loaded

SIZE = 16
FORMATS = (torch.contiguous_format, torch.channels_last)


def images_of(count: int, dtype: torch.dtype, memory_format: torch.memory_format) -> Tensor:
    return torch.rand(count, 3, SIZE, SIZE).to(dtype, memory_format=memory_format)


@pytest.mark.parametrize("memory_format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("left", [0, 1])
def test_the_dummy_has_the_strides_and_the_dtype_of_the_batch(
    left: int, dtype: torch.dtype, memory_format: torch.memory_format
):
    images = images_of(left, dtype, memory_format)
    loaded = Loaded.of(images, torch.zeros(left, dtype=torch.int64), 8, is_last=True)
    assert (loaded.is_dummy, loaded.is_last) == (True, True)
    assert loaded.images.shape == (2, 3, SIZE, SIZE)
    assert (loaded.images.dtype, loaded.images.device) == (dtype, images.device)
    assert loaded.images.stride() == images_of(8, dtype, memory_format).stride()
    assert loaded.images.isfinite().all()
    assert (loaded.images.float().flatten(1).std(1) > 0.5).all(), "a model may divide by an image's spread"
    assert (loaded.target.dtype, loaded.target.tolist()) == (torch.int64, [0, 0])


def test_the_dummy_of_a_mixed_batch_has_probabilities_for_targets():
    loaded = Loaded.of(images_of(1, torch.float32, torch.channels_last), torch.ones(1, 5), 8, is_last=False)
    assert (loaded.target.shape, loaded.target.dtype) == ((2, 5), torch.float32)


@pytest.mark.parametrize(("left", "planned"), [(2, 8), (8, 8), (1, 1), (2, 2)])
def test_enough_readable_images_are_the_batch_itself(left: int, planned: int):
    images, target = images_of(left, torch.bfloat16, torch.channels_last), torch.arange(left)
    loaded = Loaded.of(images, target, planned, is_last=True)
    assert loaded.images is images
    assert loaded.target is target
    assert not loaded.is_dummy


@pytest.mark.parametrize("channels_last", ["true", "false"])
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("left", [0, 1])
def test_the_first_convolution_cannot_tell_it_from_a_batch(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, level: str, channels_last: str
):
    """From files on: of the first of a step's two batches ``left`` images can be read, of the second all four."""
    folder = make_folder(tmp_path / "set", train=8, val=2)
    paths = sorted(folder.glob("train/*/*.jpg"))
    first, *_ = StepSampler(16, 4, accumulation=2)
    for _, index in first[left:]:
        write_empty(paths[index])
    seen: list[Tensor] = []

    def watched(num_classes: int) -> nn.Module:
        model = toy_models.Tiny(num_classes)
        model.features[0].register_forward_pre_hook(lambda module, inputs: look(inputs[0]) if model.training else None)
        return model

    def look(images: Tensor) -> None:
        if images.device.type == "cpu" and images.any():  # the start estimates with a meta and a black image
            seen.append(images)

    monkeypatch.setattr(toy_models, "tiny", watched)
    flags = f"-a toy_models:tiny -b 4 --grad-accum-steps 2 --image-size 32 --epochs 1 --tensorboard false -j 0 --opt-level {level}"
    more = f"--channels-last {channels_last} --bad-images skip --output-dir run"
    assert run(folder, base=f"{flags} {more}") == 0
    assert [len(images) for images in seen] == [2, 4, 4, 4]
    dummy, real = seen[:2]
    assert dummy.dtype == real.dtype == (torch.bfloat16 if level in ("O2", "O3") else torch.float32)
    assert dummy.stride() == real.stride()
    assert real.is_contiguous(memory_format=FORMATS[channels_last == "true"])

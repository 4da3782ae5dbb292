"""Images, confusions and histograms in TensorBoard, and what they cost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_no_sync import Reads

from trainer.distributed import Group, Ranks
from trainer.gallery import SHOWN, Gallery, confusion_picture

ROOT = Path(__file__).parent.parent
NAMES = ["cat", "dog", "eel"]


class Files:
    def __init__(self) -> None:
        self.images: dict[str, np.ndarray] = {}
        self.scalars: dict[str, float] = {}

    def add_image(self, tag: str, picture: np.ndarray, step: int) -> None:
        self.images[tag] = picture

    def add_scalars(self, values: dict[str, float], step: int) -> None:
        self.scalars.update(values)


def gallery() -> Gallery:
    return Gallery(Group(Ranks(), torch.device("cpu")), NAMES, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(size, 3, 8, 8, generator=generator),
        torch.randn(size, 3, generator=generator),
        torch.randint(3, (size,), generator=generator),
    )


def test_confusions_and_worst_errors_are_those_of_all_batches_at_once():
    seen, batches = gallery(), [batch(size, seed) for seed, size in enumerate((10, 30, 7))]
    seen.start_validation()
    for one in batches:
        seen.add(*one)
    images, output, target = (torch.cat(each) for each in zip(*batches, strict=True))
    answer = output.argmax(1)
    expected = [[int(((target == row) & (answer == column)).sum()) for column in range(3)] for row in range(3)]
    assert seen.confusion is not None
    assert seen.confusion.tolist() == expected
    losses = torch.nn.functional.cross_entropy(output, target, reduction="none")
    worst = losses[answer != target].sort(descending=True).values[:SHOWN]
    assert seen._worst is not None
    assert torch.equal(seen._worst[0], worst)
    files = Files()
    seen.write(files, 1)  # type: ignore[arg-type]
    assert {"images/worst_val_errors", "images/confusion"} == set(files.images)
    for index, name in enumerate(NAMES):
        right, count = expected[index][index], sum(expected[index])
        assert files.scalars[f"val_class_acc1/{name}"] == pytest.approx(100 * right / count)


def test_nothing_is_read_from_the_device_before_the_end():
    seen = gallery()
    with Reads() as reads:
        seen.start_validation()
        next(seen.first_kept(iter([batch(8, 0)[::2]])))
        seen.add(*batch(8, 0))
        seen.add(*batch(20, 1))
    assert reads.seen == []


def test_pixels_are_what_they_were_before_they_were_normalised():
    seen = gallery()
    pictures = seen._thumbnails(torch.tensor([-2.0, 0.0, 2.0]).view(1, 3, 1, 1).expand(1, 3, 16, 16))
    assert pictures[0].reshape(-1, 3).max(0).tolist() == [0, 128, 255]


def test_a_batch_of_which_nothing_could_be_read_is_passed_over():
    empty, full = (torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.int64)), batch(8, 0)[::2]
    seen, files = gallery(), Files()
    seen.start_validation()
    assert len(list(seen.first_kept(iter([empty, full])))) == 2
    seen.write(files, 1)  # type: ignore[arg-type]
    assert "images/train" in files.images
    files = Files()
    assert len(list(seen.first_kept(iter([empty])))) == 1
    seen.write(files, 2)  # type: ignore[arg-type]
    assert "images/train" not in files.images


def test_without_an_error_there_is_no_picture_of_one():
    seen, files = gallery(), Files()
    seen.start_validation()
    seen.add(torch.zeros(3, 3, 8, 8), 9 * torch.eye(3), torch.arange(3))
    seen.write(files, 1)  # type: ignore[arg-type]
    assert "images/worst_val_errors" not in files.images
    assert set(files.scalars.values()) == {100.0}


@pytest.mark.parametrize("count", [2, 10, 100])
def test_the_confusion_picture_is_bluest_on_its_diagonal(count):
    picture = confusion_picture(np.eye(count, dtype=np.int64), [str(index) for index in range(count)])
    cell = max(4, 480 // count)
    assert picture[-2, -2].tolist() == [0, 114, 178]
    assert picture[-2, -2 - cell].tolist() == [255, 255, 255]


def events(folder: str) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(folder, size_guidance={"images": 0, "histograms": 0, "scalars": 0})
    found.Reload()
    return found


def test_a_run_writes_them_each_epoch(run):
    assert run("--output-dir", "run", "--epochs", 2, "--tensorboard", "true", "--mixup", 0.2) == 0
    found = events("run")
    assert [image.step for image in found.Images("images/train")] == [4, 8]
    assert [image.step for image in found.Images("images/confusion")] == [4, 8]
    assert [each.histogram_value.num for each in found.Histograms("train/grad_norm_of_epoch")] == [4, 4]
    assert "custom_scalars__config__" in found.Tags()["tensors"]
    assert found.Scalars("hparam/images_per_sec")[0].step == 8


def test_a_run_that_stops_before_its_first_validation_has_hparams(run):
    """As those of a comparison do."""
    assert run("--output-dir", "run", "--stop-after-steps", 2, "--tensorboard", "true") == 0
    assert events("run").Scalars("hparam/images_per_sec")[0].step == 2
    assert "hparam/best_val_acc1" not in events("run").Tags()["scalars"]


def test_the_hparams_tab_shows_the_memory_format_unasked(run):
    """It ticks the first five settings by name."""
    metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    flags = ["--output-dir", "run", "--stop-after-steps", 1, "--tensorboard", "true"]
    assert run(*flags, "--channels-last", "true", "--auto-augment", "ta_wide") == 0
    content = events("run").SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    settings = sorted(metadata.parse_session_start_info_plugin_data(content).hparams)
    assert "channels_last" in settings[:5]
    assert not {"bad_images", "workers", "cpu_heap"} & set(settings)


@pytest.mark.slow
def test_two_ranks_count_as_one_does(run, tmp_path):
    assert run("--output-dir", "run", "--synthetic-size", 90) == 0
    flags = ["-e", "--resume", "run", "--tensorboard", "true", "--output-dir"]
    assert run(*flags, "one", base="") == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {"PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [*command, ROOT / "train.py", *flags, "two"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = events("one"), events("two")
    tags = [tag for tag in one.Tags()["scalars"] if tag.startswith("val_class_acc1/")]
    assert len(tags) > 1
    for tag in tags:
        assert two.Scalars(tag)[0].value == one.Scalars(tag)[0].value
    assert (
        two.Images("images/confusion")[0].encoded_image_string == one.Images("images/confusion")[0].encoded_image_string
    )

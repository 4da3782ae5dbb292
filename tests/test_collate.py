"""One buffer a batch: written once a sample, shared by workers, and never laid out anew on its way to the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import make_folder
from pictures import bomb
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, get_worker_info

from data import dataset
from data.collate import HostBatch, as_batch, new_rows
from data.dataset import ImageDataset
from data.decode import Decoder
from data.feed import DeviceFeed, FeedOptions
from data.folder import scan_data_dir
from data.loaders import HostBatches, HostOptions, TrainLoader
from data.sampler import StepSampler
from data.transforms import TrainTransform, Transform, ValTransform

CPU = torch.device("cpu")
SIZE = 16
NHWC = (SIZE * SIZE * 3, 1, SIZE * 3, 3)
TRANSFORMS = (TrainTransform(SIZE, (0.3, 1.0), 0.5, "bilinear", 0), ValTransform(SIZE, 18, "bicubic"))
VIEWS = {"select", "slice", "permute", "as_strided", "view", "unbind", "alias", "detach"}
either = pytest.mark.parametrize("transform", TRANSFORMS, ids=["train", "val"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("collate"), train=7, val=3, size=40)


def images_of(folder: Path, transform: Transform = TRANSFORMS[0]) -> ImageDataset:
    return ImageDataset(scan_data_dir(str(folder))[0], Decoder(), transform)


def keys_of(*indices: int) -> list[tuple[int, int]]:
    return [(0, index) for index in indices]


class Ops(TorchDispatchMode):
    """Every operation on tensors while it is on: its name and what it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.seen.append((func.overloadpacket.__name__, result))
        return result


def feed_options(memory_format: torch.memory_format, dtype: torch.dtype = torch.float32) -> FeedOptions:
    return FeedOptions(CPU, (0.5,) * 3, (0.2,) * 3, dtype, memory_format)


@either
def test_each_sample_is_written_once_and_nothing_else_touches_the_buffer(transform: Transform, folder: Path):
    with Ops() as ops:
        batch = images_of(folder, transform).__getitems__(keys_of(0, 3, 5, 9))
    storage = batch.images.untyped_storage().data_ptr()
    inside = [name for name, result in ops.seen if result.untyped_storage().data_ptr() == storage]
    assert [name for name in inside if name not in VIEWS] == ["empty", *["copy_"] * 4]
    assert "clone" not in [name for name, result in ops.seen if result.numel() == batch.images.numel()]


@either
def test_the_buffer_is_no_larger_than_the_batch(transform: Transform, folder: Path):
    """A quarter of what the same batch is in float32."""
    batch = images_of(folder, transform).__getitems__(keys_of(0, 3, 5, 9, 11))
    assert batch.images.untyped_storage().nbytes() == 5 * 3 * SIZE * SIZE
    assert 4 * batch.images.nbytes == torch.empty(5, 3, SIZE, SIZE).nbytes
    assert batch.images.stride() == NHWC


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_buffer_itself_reaches_the_device_feed(
    memory_format: torch.memory_format, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[int] = []
    given: list[int] = []

    def rows(count: int, size: int) -> Tensor:
        buffer = new_rows(count, size)
        made.append(buffer.data_ptr())
        return buffer

    inner = DeviceFeed._normalise

    def normalise(self: DeviceFeed, images: Tensor) -> Tensor:
        given.append(images.data_ptr())
        assert images.dtype == torch.uint8
        assert images.stride() == NHWC
        return inner(self, images)

    monkeypatch.setattr(dataset, "new_rows", rows)
    monkeypatch.setattr(DeviceFeed, "_normalise", normalise)
    loader = TrainLoader(images_of(folder), StepSampler(14, 4), HostOptions(), feed_options(memory_format))
    batches = [images for images, _ in loader.epoch(0)[1]]
    assert len(batches) == 4
    assert made == given
    assert all(images.is_contiguous(memory_format=memory_format) for images in batches)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_feed_makes_no_layout_copy(dtype: torch.dtype, folder: Path):
    """Whatever has the size of the batch has its strides, and only arithmetic and the cast make such tensors."""
    host = HostBatches("train", images_of(folder), [keys_of(0, 3, 5, 9)], HostOptions())
    batches = list(host)
    feed = DeviceFeed(batches, feed_options(torch.channels_last, dtype))
    with Ops() as ops:
        ((images, _),) = feed
    full = [(name, result) for name, result in ops.seen if result.numel() == images.numel() and name not in VIEWS]
    # To float32, the normalisation in place over rows of that memory, and the cast where one is asked for.
    assert [name for name, _ in full] == ["_to_copy", "addcmul", *(["_to_copy"] if dtype is torch.bfloat16 else [])]
    assert full[1][1].data_ptr() == full[0][1].data_ptr()
    assert all(result.stride() == NHWC for name, result in full if name != "addcmul")
    assert images.stride() == NHWC


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_one_kernel_of_a_gpu_gives_the_same(dtype: torch.dtype, memory_format: torch.memory_format, folder: Path):
    """One operation that reads bytes and writes what is asked for."""
    images = images_of(folder).__getitems__(keys_of(0, 3, 5, 9)).images
    feed = DeviceFeed([], feed_options(memory_format, dtype))
    expected = feed._normalise(images)
    feed._in_one_kernel = True
    with Ops() as ops:
        found = feed._normalise(images)
    assert [name for name, _ in ops.seen if name not in ("empty", "detach", "view")] == ["addcmul"]
    assert found.dtype == dtype
    assert found.is_contiguous(memory_format=memory_format)
    assert torch.equal(found, expected)


def as_seen_where_it_is_made(batch: HostBatch) -> tuple[HostBatch, bool, bool]:
    """The batch, and, in the process that made it: whether that is a worker, and the images lie in shared memory.
    On their way to the main process all tensors are moved there."""
    return batch, get_worker_info() is not None, batch.images.is_shared()


def test_a_worker_writes_into_shared_memory(folder: Path):
    """Which the main process maps; the batch of the main process itself needs none."""
    source = images_of(folder)
    sampler = [keys_of(0, 3, 5, 9), keys_of(1), keys_of(2, 4)]
    alone, loaded = (
        list(DataLoader(source, batch_sampler=sampler, num_workers=workers, collate_fn=as_seen_where_it_is_made))
        for workers in (0, 2)
    )
    assert [seen for _, *seen in alone] == [[False, False]] * 3
    assert [seen for _, *seen in loaded] == [[True, True]] * 3
    for (one, *_), (other, *_), keys in zip(alone, loaded, sampler, strict=True):
        assert isinstance(other, HostBatch)
        assert not one.images.is_shared()
        assert other.images.is_shared()
        assert other.images.stride() == one.images.stride() == NHWC
        assert other.images.untyped_storage().nbytes() == len(keys) * 3 * SIZE * SIZE
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.target, other.target)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("broken", [(0,), (2,), (3,), (0, 1, 3), (0, 1, 2, 3)], ids=str)
def test_bad_samples_leave_the_batch(broken: Sequence[int], workers: int, folder: Path, tmp_path: Path):
    """Those after them move up: images, targets and names stay together. A file that is gone is one of them,
    and one whose pixels break off halfway."""
    whole = make_folder(tmp_path, train=7, val=3, size=40)
    indices = [1, 4, 8, 12]
    good = images_of(folder)
    expected = good.__getitems__(keys_of(*indices))
    spoilt = images_of(whole)
    for position in broken:
        path = Path(spoilt.index.name(indices[position]))
        if position == 0:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-200] if position == 2 else bomb(30000, 30000))
    (batch,) = DataLoader(
        spoilt, batch_sampler=[keys_of(*indices)], num_workers=workers, collate_fn=lambda batch: batch
    )
    kept = [position for position in range(4) if position not in broken]
    assert torch.equal(batch.images, expected.images[kept])
    assert torch.equal(batch.target, expected.target[kept])
    assert batch.images.stride() == NHWC
    assert [bad.number for bad in batch.bad] == [indices[position] for position in broken]
    assert [bad.name for bad in batch.bad] == [spoilt.index.name(indices[position]) for position in broken]
    assert [bad.class_name for bad in batch.bad] == ["ab"[indices[position] // 7] for position in broken]
    reasons = {0: "No such file", 1: "more than", 2: "truncated", 3: "more than"}
    assert all(reasons[position] in bad.reason for position, bad in zip(broken, batch.bad, strict=True))


def test_an_empty_batch_still_tells_its_format():
    """What stands in for a batch without a readable image takes its strides."""
    batch = as_batch(new_rows(3, SIZE), [], [])
    assert batch.images.shape == (0, 3, SIZE, SIZE)
    assert batch.target.shape == (0,)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        ((images, _),) = DeviceFeed([(batch.images, batch.target)], feed_options(memory_format))
        assert images.stride() == (NHWC if memory_format is torch.channels_last else (768, 256, 16, 1))

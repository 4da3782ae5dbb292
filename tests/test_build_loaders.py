"""What one rank's loaders are built from: memory, processes, order and mixing, by device and rank."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from helpers import make_folder
from torch.utils.data import DataLoader

from data import build
from data.build import WORKER_NICENESS, LoaderOptions, open_loaders, plan_loading
from data.dataset import ImageDataset, Key
from data.decode import Decoder
from data.feed import FeedOptions
from data.folder import scan_data_dir
from data.loaders import HostBatches, HostOptions, fail_on_bad, worker_batches
from data.sampler import StepSampler
from data.synthetic import build_synthetic
from data.transforms import TrainTransform
from data.worker_start import WorkerStart

CPU = torch.device("cpu")
FEED = FeedOptions(CPU, (0.5,) * 3, (0.2,) * 3, torch.float32, torch.channels_last)


def options(mixup: float = 0.0, cutmix: float = 0.0, workers: int = 3) -> LoaderOptions:
    return LoaderOptions(
        batch_size=4, val_batch_size=5, grad_accum_steps=2, steps_per_epoch=3, workers=workers, seed=6, mixup=mixup,
        cutmix=cutmix, num_classes=4,
    )  # fmt: skip


class WhoLoads:
    """Stands in for images: a batch is the process that made it, its niceness, and the keys."""

    def __getitems__(self, keys: list[Key]) -> tuple[int, int, list[Key]]:
        return os.getpid(), os.getpriority(os.PRIO_PROCESS, 0), keys


# Planning


@pytest.mark.parametrize(
    ("device", "pinned", "niceness"), [("cuda", True, 0), ("cpu", False, WORKER_NICENESS), ("mps", False, 0)]
)
def test_the_device_decides_on_pinned_memory_and_niceness(device: str, pinned: bool, niceness: int):
    """R96. Pages are pinned for a GPU's copy engine alone; workers give way where the CPU trains alone."""
    assert WORKER_NICENESS > 0
    _, host = plan_loading(100, options(), (1, 2), device, fail_on_bad)
    assert host == HostOptions(3, pinned, niceness, fail_on_bad)


def test_the_order_is_that_of_the_rank_and_the_options():
    sampler, _ = plan_loading(100, options(), (1, 2), "cpu", fail_on_bad)
    expected = StepSampler(100, 4, 1, 2, 2, 6, 3)
    assert vars(sampler) == vars(expected)
    assert list(sampler) == list(expected)


# Workers


@pytest.mark.parametrize("niceness", [0, 3])
def test_workers_give_way_by_as_much_as_asked_and_live_on(niceness: int):
    here = os.getpriority(os.PRIO_PROCESS, 0)
    batches = worker_batches(WhoLoads(), [[(0, 1)], [(0, 2)], [(0, 3)], [(0, 4)]], HostOptions(2, False, niceness))
    first, second = list(batches), list(batches)
    assert [keys for _, _, keys in first] == [[(0, 1)], [(0, 2)], [(0, 3)], [(0, 4)]]
    made_by = {process for process, _, _ in first}
    assert len(made_by) == 2
    assert os.getpid() not in made_by
    assert {process for process, _, _ in second} == made_by, "a new epoch must not start new workers"
    assert {nice for _, nice, _ in first} == {min(19, here + niceness)}


class WhoHears:
    """Stands in for images: a batch is, of each thread of the process that made it, whether it leaves SIGTERM alone."""

    def __getitems__(self, keys: list[Key]) -> list[bool]:
        return [_blocks_sigterm(thread) for thread in Path("/proc/self/task").iterdir()]


def _blocks_sigterm(thread: Path) -> bool:
    blocked = re.search(r"^SigBlk:\s*([0-9a-f]+)$", (thread / "status").read_text(), re.MULTILINE)
    assert blocked
    return bool(int(blocked[1], 16) >> (signal.SIGTERM - 1) & 1)


class AfterAnotherThread(WorkerStart):
    """A worker in which a library has a thread already, as after the fork of a process that has trained."""

    def __call__(self, worker: int) -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        super().__call__(worker)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_thread_of_a_worker_takes_a_sigterm_and_ours_all_do(monkeypatch: pytest.MonkeyPatch):
    """torchrun and clusters send it to every process of a run, which still needs its workers for a step and a save."""
    monkeypatch.setattr("data.loaders.WorkerStart", AfterAnotherThread)
    for hears in worker_batches(WhoHears(), [[(0, 1)], [(0, 2)]], HostOptions(2)):
        assert len(hears) >= 3, "the worker's own, the library's, the one that waits for the signal"
        assert hears.count(False) <= 1, "for the one that waits the system lifts the block"
    assert not _blocks_sigterm(Path("/proc/self"))


def test_without_workers_this_process_loads_as_nice_as_it_was():
    here = os.getpriority(os.PRIO_PROCESS, 0)
    ((process, nice, _),) = worker_batches(WhoLoads(), [[(0, 1)]], HostOptions(0, False, 3))
    assert (process, nice, os.getpriority(os.PRIO_PROCESS, 0)) == (os.getpid(), here, here)


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_planned_reaches_the_loader(
    workers: int, pinned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[dict] = []

    def loader(*args, **kwargs):
        asked.append(kwargs)
        return DataLoader(*args, **{**kwargs, "pin_memory": False})

    monkeypatch.setattr("data.loaders.WorkerLoader", loader)
    index, _ = scan_data_dir(str(make_folder(tmp_path, train=2, val=1, size=8)))
    source = ImageDataset(index, Decoder(), TrainTransform(8, (0.3, 1.0), 0.5, "bilinear", 0))
    HostBatches("train", source, [[(0, 0)]], HostOptions(workers, pinned))
    (given,) = asked
    assert (given["num_workers"], given["pin_memory"], given["persistent_workers"]) == (workers, pinned, workers > 0)


# Mixing


def loaded(rank: int, **mixing: float) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """One epoch of rank ``rank`` of two."""
    sources = build_synthetic(64, 4, (8, 8), 0, 5)
    return list(open_loaders(sources, options(**mixing), (rank, 2), FEED, fail_on_bad)[0].epoch(0)[1])


@pytest.mark.parametrize("mixing", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}], ids=str)
def test_ranks_mix_in_shares_of_their_own(mixing: dict[str, float], monkeypatch: pytest.MonkeyPatch):
    made: list[tuple] = []
    inner = build.Mixer
    monkeypatch.setattr(build, "Mixer", lambda *given: made.append(given) or inner(*given))
    shares = [[target.max().item() for _, target in loaded(rank, **mixing)] for rank in (0, 1)]
    assert [given[3:] for given in made] == [(6, 0), (6, 1)]
    assert len(shares[0]) == len(shares[1]) == 6
    assert shares[0] != shares[1]
    assert shares[1] == [target.max().item() for _, target in loaded(1, **mixing)]


def test_without_mixing_targets_are_labels():
    assert {target.dtype for _, target in loaded(1)} == {torch.int64}

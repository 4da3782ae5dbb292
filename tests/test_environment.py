"""Devices, threads, seeds, and the snapshot of what ran where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from trainer import environment
from trainer.distributed import Ranks
from trainer.environment import resolve_device, seed_everything, set_threads
from trainer.errors import UserError
from trainer.snapshot import snapshot

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "usable_cores", lambda: 8)


def test_devices_that_are_not_here_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto", 0) == CPU
    for name in ("cuda", "mps"):
        with pytest.raises(UserError, match=f"--device {name}: .* take --device cpu"):
            resolve_device(name, 0)


def test_each_local_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch):
    current: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert resolve_device("auto", 1) == torch.device("cuda", 1)
    assert current == [1]
    with pytest.raises(UserError, match="local rank 2 has no GPU: this machine has 2"):
        resolve_device("cuda", 2)


@pytest.mark.parametrize(
    ("environ", "local", "parent", "expected"),
    [
        ({}, 1, "", 8),
        ({}, 3, "", 2),
        ({}, 16, "", 1),
        ({"OMP_NUM_THREADS": "5"}, 2, "", None),
        ({"OMP_NUM_THREADS": "1"}, 1, "", None),
        ({"OMP_NUM_THREADS": "1"}, 2, "", None),  # not torchrun's doing
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, 2, "HOME=/\0", 4),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, 2, "HOME=/\0OMP_NUM_THREADS=1\0", None),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, 1, "", None),
    ],
)
def test_threads_of_a_cpu_rank(environ, local, parent, expected, monkeypatch, tmp_path):
    """Usable cores over local ranks unless the user said; torchrun's own 1 is not the user's."""
    for key in ("OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(key, raising=False)
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    (tmp_path / "environ").write_text(parent)
    monkeypatch.setattr(environment, "Path", lambda path: tmp_path / "environ" if "/proc/" in path else Path(path))
    asked: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    ranks = Ranks(0, local, 0, local)
    assert set_threads(ranks, CPU) == torch.get_num_threads()
    assert asked == ([] if expected is None else [expected])
    set_threads(ranks, CUDA)
    assert len(asked) <= 1, "a GPU rank keeps torch's own choice"


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_every_seed_that_the_flag_takes_works(seed: int):
    draws = []
    with torch.random.fork_rng(devices=[]):
        for rank in (0, 1, 0):
            seed_everything(seed, rank)
            draws.append(torch.rand(4))
    assert torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], draws[1])


def test_the_snapshot_is_plain_and_whole():
    facts = json.loads(json.dumps(snapshot(CPU, Ranks(1, 2, 1, 2))))
    assert facts["torch"] == torch.__version__
    assert (facts["device"], facts["world_size"], facts["cudnn"]) == ("cpu", 2, None)
    assert isinstance(facts["cpu_features"], list)
    assert facts["command"]

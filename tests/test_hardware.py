"""What a machine is and has free, read from files that tests write."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import toy_models
from torch import nn

from trainer import hardware
from trainer.hardware import (
    cpu_info,
    expected_memory,
    free_memory,
    half_precision_notice,
    peak_memory_gib,
    usable_cores,
)

FAST = [frozenset({"avx2", "avx512f", "avx512_bf16"}), frozenset({"avx512f", "amx_bf16"})]
SLOW = frozenset({"avx2", "avx512f"})
GIB = 2**30


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The only files there are."""
    there: dict[str, str] = {}
    monkeypatch.setattr(hardware, "_read", lambda path: there.get(str(path), ""))
    return there


def test_the_cpu_and_its_features():
    text = (
        "processor\t: 0\nmodel name\t: Some CPU @ 2: GHz\nflags\t\t: fpu avx2 avx512f amx_bf16 sse\n\nprocessor\t: 1\n"
    )
    assert cpu_info(text) == ("Some CPU @ 2: GHz", {"avx2", "avx512f", "amx_bf16"})
    name, features = cpu_info("")
    assert name
    assert features == frozenset()
    assert cpu_info()[0]


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_half_precision_on_a_cpu_is_told(level: str):
    """R37: per dtype and per CPU; a fast path needs no word."""
    assert "14 times slower" in (half_precision_notice(level, torch.bfloat16, SLOW) or "")
    for features in FAST:
        assert half_precision_notice(level, torch.bfloat16, features) is None
        assert "float16 is slow on every CPU" in (half_precision_notice(level, torch.float16, features) or "")
    assert "float16 is slow on every CPU" in (half_precision_notice(level, torch.float16, SLOW) or "")


def test_float32_on_a_cpu_that_could_do_better_is_told():
    for features in FAST:
        assert "--opt-level O1" in (half_precision_notice("O0", torch.bfloat16, features) or "")
    assert half_precision_notice("O0", torch.bfloat16, SLOW) is None
    assert half_precision_notice("O0", torch.bfloat16, frozenset()) is None


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("", 8), ("max 100000", 8), ("300000 100000", 3), ("50000 100000", 1), ("1600000 100000", 8)],
)
def test_cores_respect_affinity_and_the_containers_limit(quota: str, expected: int, files, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    files["/sys/fs/cgroup/cpu.max"] = quota
    assert usable_cores() == expected


def test_free_memory_is_the_least_of_what_limits_it(files: dict[str, str]):
    assert free_memory() is None
    files["/proc/meminfo"] = f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {4 * 2**20} kB\n"
    assert free_memory() == 4 * GIB
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    files["/sys/fs/cgroup/memory.current"] = f"{GIB}\n"
    assert free_memory() == 4 * GIB
    files["/sys/fs/cgroup/memory.max"] = f"{3 * GIB}\n"
    assert free_memory() == 2 * GIB
    files["/sys/fs/cgroup/memory.stat"] = f"anon 5\ninactive_file {GIB // 2}\nactive_file 7\n"
    assert free_memory() == 2.5 * GIB


def test_this_machines_own_figures_are_sane():
    free = free_memory()
    assert free is None or free > 2**20
    assert 0.01 < peak_memory_gib(torch.device("cpu")) < 1000
    assert 1 <= usable_cores() <= 4096


# Expected memory


def expected(model: nn.Module, size: int, batch: int, factor: float = 1.0, masters: bool = False) -> int:
    found = expected_memory(model, size, batch, factor, 20 if masters else 12)
    assert found is not None
    return found


def test_expected_memory_of_a_linear_model_by_hand():
    """Weights, gradients and momentum; the flat input and the hidden layer (backward holds the largest activation
    twice more), but not the weights again."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 1000), nn.ReLU(), nn.Linear(1000, 10))
    weights = sum(parameter.numel() for parameter in model.parameters()) * 4
    for batch in (2, 8, 100):
        assert expected(model, 8, batch) == 3 * weights + batch * (192 + 1000 + 2 * 1000) * 4
    assert expected(model, 8, 0, masters=True) == 5 * weights


def test_expected_memory_grows_with_the_batch():
    from torchvision import models

    with torch.device("meta"):
        model = models.resnet18()
    small, large = (expected(model, 224, batch) for batch in (8, 16))
    weights = 3 * 11.69e6 * 4
    assert large - weights == pytest.approx(2 * (small - weights), rel=0.02)
    # Between 15 and 30 MiB an image are known of this model at 224 pixels.
    assert 15 * 2**20 < (large - small) / 8 < 30 * 2**20
    halved = expected(model, 224, 16, factor=0.5)
    assert halved - weights == pytest.approx((large - weights) / 2, rel=0.02)
    assert expected(model, 112, 16) - weights == pytest.approx((large - weights) / 4, rel=0.05)


def test_expected_memory_touches_neither_model_nor_generator():
    model = toy_models.dropping(3)
    before, state = torch.get_rng_state(), {name: value.clone() for name, value in model.state_dict().items()}
    assert expected(model.eval(), 16, 4) > 0
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not model.training


def test_a_model_that_cannot_run_without_data_has_no_expectation():
    class Reads(nn.Linear):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) if images.sum().item() else images

    assert expected_memory(Reads(8, 8), 8, 4, 1.0, 12) is None


def test_a_missing_file_reads_as_empty(tmp_path: Path):
    assert hardware._read(tmp_path / "none") == ""

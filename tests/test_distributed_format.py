"""Memory format over ranks: DistributedDataParallel on two gloo processes, and what FSDP2 makes of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from format_worker import CASES
from helpers import refused, torchrun
from torch import nn

from trainer.models import build_model

TESTS = Path(__file__).parent
BUCKETS = "Grad strides do not match bucket view strides"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict], str]:
    """What both ranks of tests/format_worker.py found, and their stderr."""
    folder = tmp_path_factory.mktemp("ranks")
    done = torchrun(folder, 2, TESTS / "format_worker.py", folder, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)], done.stderr


@pytest.fixture(params=[f"{level} {channels_last}" for level, channels_last in CASES])
def cases(reports: tuple[list[dict], str], request: pytest.FixtureRequest) -> list[dict]:
    """One case on both ranks: an optimization level, and ``--channels-last`` true or false."""
    found = [report[request.param] for report in reports[0]]
    assert {case["wrapped"] for case in found} == {"DistributedDataParallel"}
    return found


def test_gradients_over_two_ranks_are_those_of_one_process(cases: list[dict], request: pytest.FixtureRequest):
    """Three steps on the same global batches; bfloat16 has 8 bits, and rounds before the mean over ranks."""
    share = 0.02 if "O2" in request.node.callspec.id else 1e-5
    for case in cases:
        assert case["gradient_size"] > 0
        assert case["gradient_distance"] <= share * case["gradient_size"]
        assert case["weight_distance"] <= share * case["gradient_size"]


def test_every_tensor_keeps_the_format_after_three_steps(cases: list[dict]):
    """Parameters, gradients, masters and momentum, exact strides: 1x1, depthwise and grouped weights too."""
    assert [case["other_strides"] for case in cases] == [[], []]


def test_every_tensor_has_the_format_after_loading(cases: list[dict]):
    """R51: the file is contiguous; the next step is the one that the straight run takes."""
    assert [case["other_strides_loaded"] for case in cases] == [[], []]
    assert [case["loaded_distance"] for case in cases] == [0, 0]


def test_no_warning_of_bucket_strides(cases: list[dict]):
    """R48, R49."""
    assert [case["warnings"] for case in cases] == [[], []]


def test_a_model_converted_after_wrapping_would_have_warned(reports: tuple[list[dict], str]):
    """What the test above looks for does happen where the order is wrong."""
    assert all(BUCKETS in " ".join(report["control"]) for report in reports[0])
    assert BUCKETS not in reports[1]


def test_conversion_after_wrapping_is_refused(reports: tuple[list[dict], str]):
    for report in reports[0]:
        message, _ = report["refused"]
        assert message.startswith("the model is wrapped in DistributedDataParallel already")
        assert message.endswith("convert the model first, wrap it afterwards")
        assert report["refused_inside"][0].startswith("1 is wrapped in DistributedDataParallel")


def test_synchronized_batch_norm_is_refused_on_a_cpu(reports: tuple[list[dict], str]):
    """R69: both ranks know it, so that one of them tells."""
    for report in reports[0]:
        message, on_every_rank = report["sync_bn"]
        assert message.startswith("--sync-bn needs CUDA")
        assert on_every_rank


# FSDP2


@pytest.fixture
def world_of_one():
    """A gloo group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def mesh():
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (1,))


def test_fsdp2_takes_no_channels_last_parameters(world_of_one: None):
    """The ground of what docs/scale_out.md says; once this fails, torch has learnt it."""
    from torch.distributed.fsdp import fully_shard

    with pytest.raises(NotImplementedError, match="non-contiguous"):
        fully_shard(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), mesh=mesh())


NETS = """
from torch import nn

def sharded(num_classes):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, num_classes))
    fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
    return model

def tensor_parallel(num_classes):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_module
    return distribute_module(nn.Linear(4, num_classes), init_device_mesh("cpu", (1,)))

def wrapped(num_classes):
    return nn.parallel.DistributedDataParallel(nn.Linear(4, num_classes))
"""


@pytest.mark.parametrize(
    ("factory", "what"),
    [
        ("sharded", "a model sharded by FSDP2 (fully_shard), which takes contiguous parameters only"),
        ("tensor_parallel", "a model whose parameters are DTensors"),
        ("wrapped", "a model wrapped in DistributedDataParallel"),
    ],
)
def test_a_factory_returns_a_plain_module(
    world_of_one: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, what: str
):
    (tmp_path / "parallel_nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "parallel_nets", raising=False)
    message = refused(build_model, f"parallel_nets:{factory}", 3)
    assert message.startswith(f"--arch parallel_nets:{factory} returned {what}: return the plain module")


def test_fully_sharded_data_parallel_is_refused(world_of_one: None):
    """The older FSDP, whose parameters are flat."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    from trainer.models import _parallel_wrapper

    standing_in = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(standing_in)
    assert _parallel_wrapper(nn.Sequential(standing_in)) == "wrapped in FullyShardedDataParallel"

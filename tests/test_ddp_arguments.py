"""What DistributedDataParallel is asked for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trainer import build
from trainer.build import build_stepper
from trainer.cli import parse
from trainer.distributed import Group, Ranks
from trainer.resolve import resolve_config

CPU = torch.device("cpu")
BUFFERS = {"broadcast_buffers", "forward_sync_buffers"} & set(inspect.signature(DistributedDataParallel).parameters)


@pytest.fixture
def group() -> Iterator[Group]:
    """A group of this process alone that counts as one of several."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = Group(Ranks(), CPU)
    group._store = dist.HashStore()
    yield group
    dist.destroy_process_group()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The keywords of every wrapping."""
    found: list[dict[str, Any]] = []

    class Spy(DistributedDataParallel):
        @functools.wraps(DistributedDataParallel.__init__)
        def __init__(self, *args: Any, **keywords: Any) -> None:
            found.append(keywords)
            super().__init__(*args, **keywords)

    monkeypatch.setattr(build, "DistributedDataParallel", Spy)
    return found


def built(flags: str, group: Group):
    small = "--image-size 32 --num-classes 4 --device cpu --cpu-heap default"
    config = resolve_config(parse([*small.split(), *flags.split()]).config, CPU, group.ranks, None)[0]
    return build_stepper(config, group, False).stepper


@pytest.mark.parametrize("channels_last", ["true", "false"])
@pytest.mark.parametrize(
    ("flags", "static"),
    [
        ("-a resnet18", True),
        ("-a resnet18 --opt-level O2", True),
        ("-a resnet18 --grad-accum-steps 2", False),
        ("-a resnet18 --micro-batch 2", False),
        ("-a toy_models:tiny", False),
    ],
)
def test_gradients_are_bucket_views_and_the_graph_is_static_where_it_holds(
    flags: str, static: bool, channels_last: str, group: Group, asked: list[dict[str, Any]]
):
    """Views save a copy of the gradients a step, and fit strides of the parameters alone (R48); statistics stay each
    rank's own."""
    stepper = built(f"{flags} --channels-last {channels_last}", group)
    (keywords,) = asked
    assert keywords["gradient_as_bucket_view"] is True
    assert keywords["static_graph"] is static
    assert keywords["device_ids"] is None
    assert BUFFERS & set(keywords)
    assert not any(keywords[key] for key in BUFFERS & set(keywords))
    assert isinstance(stepper.wrapped, DistributedDataParallel)
    assert stepper.wrapped.gradient_as_bucket_view
    assert stepper.wrapped.static_graph is static
    assert stepper.wrapped.module is stepper.model


def test_one_process_is_not_wrapped(asked: list[dict[str, Any]]):
    stepper = built("-a toy_models:tiny", Group(Ranks(), CPU))
    assert asked == []
    assert stepper.wrapped is stepper.model

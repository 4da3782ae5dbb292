"""--global-batch-size: one setting with -b, divided among ranks and accumulated batches."""

from __future__ import annotations

import pytest
import torch
from helpers import refused

from trainer.cli import merge_with_checkpoint, parse
from trainer.config import TrainConfig
from trainer.distributed import Ranks
from trainer.resolve import resolve_config

CPU = torch.device("cpu")


@pytest.mark.parametrize(("world", "accumulation", "batch"), [(1, 1, 48), (2, 1, 24), (4, 2, 6)])
def test_a_global_batch_is_divided_among_the_ranks(world: int, accumulation: int, batch: int) -> None:
    config = TrainConfig(global_batch_size=48, grad_accum_steps=accumulation)
    found, _ = resolve_config(config, CPU, Ranks(0, world, 0, world), None)
    assert (found.batch_size, found.val_batch_size) == (batch, batch)


def test_a_global_batch_that_does_not_divide_is_refused() -> None:
    config = TrainConfig(global_batch_size=48, grad_accum_steps=5)
    message = refused(resolve_config, config, CPU, Ranks(0, 2, 0, 2), None)
    assert "2 processes x 5 batches" in message
    assert "take 50" in message


def test_batch_and_global_batch_are_one_setting() -> None:
    assert "give one of them" in refused(parse, ["-b", "8", "--global-batch-size", "16"])
    saved = {"batch_size": 8, "global_batch_size": None}
    assert merge_with_checkpoint({"global_batch_size": 16}, saved).global_batch_size == 16
    assert merge_with_checkpoint({"batch_size": 4}, {"global_batch_size": 16}).global_batch_size is None


def test_the_batch_and_the_rule_of_the_rate_are_printed(run, capsys):
    assert run("--global-batch-size", 16, "--grad-accum-steps", 2, "--lr", 0.1, base=BASE) == 0
    assert "batch 8 x 1 processes x 2 a step = 16 images; lr 0.1 x 16/256 = 0.00625" in capsys.readouterr().out


BASE = "-a toy_models:tiny --synthetic-size 32 --image-size 32 --num-classes 4 --tensorboard false"

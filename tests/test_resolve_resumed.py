"""What a start chooses that goes on from a checkpoint."""

from __future__ import annotations

import pytest
import torch
from helpers import taken

from trainer import resolve
from trainer.cli import merge_with_checkpoint
from trainer.config import KEYS, PER_START, TrainConfig
from trainer.distributed import Ranks
from trainer.resolve import resolve_config

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


pytestmark = pytest.mark.usefixtures("eight_cores")


# Going on from a checkpoint


def saved_by(device: torch.device = CPU, **asked) -> tuple[dict, dict]:
    """The settings that a checkpoint holds: as asked, and as chosen."""
    config = TrainConfig(**asked)
    chosen, _ = resolve_config(config, device, Ranks(), 3 if config.data_dir else None)
    return tuple({key: getattr(one, key) for key in KEYS if key not in PER_START} for one in (config, chosen))


def test_a_resumed_run_keeps_what_was_chosen_on_another_machine(monkeypatch: pytest.MonkeyPatch):
    asked, chosen = saved_by(CUDA, data_dir="/set", arch="efficientnet_b0", pretrained=True)
    merged = merge_with_checkpoint({"image_size": 160}, asked)
    monkeypatch.setattr(resolve, "usable_cores", lambda: 2)
    config, _ = resolve_config(merged, CPU, Ranks(), 3, chosen)
    keys = ("opt_level", "amp_dtype", "epochs", "num_classes", "interpolation", "val_image_size", "val_resize")
    assert taken(config, *keys) == ("O1", "float16", 90, 3, "bicubic", 160, 183)
    assert taken(config, "device", "workers", "image_size") == ("cpu", 2, 160)


def test_another_level_chooses_its_own_dtype():
    asked, chosen = saved_by(CUDA, opt_level="O2")
    merged = merge_with_checkpoint({"opt_level": "O1"}, asked)
    assert taken(resolve_config(merged, CPU, Ranks(), None, chosen)[0], "amp_dtype", "loss_scale") == ("bfloat16", 1.0)


def test_a_changed_number_of_epochs_moves_the_milestones():
    """R77: the schedule is that of the new length."""
    asked, chosen = saved_by(epochs=3)
    merged = merge_with_checkpoint({"epochs": 6}, asked)
    assert resolve_config(merged, CPU, Ranks(), None, chosen)[0].lr_milestones == pytest.approx((2, 4, 16 / 3))


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_a_loss_scale_that_was_not_used_hinders_no_resume(level: str):
    asked, chosen = saved_by(opt_level=level, loss_scale=128.0)
    for device in (CPU, CUDA):
        config, told = resolve_config(merge_with_checkpoint({}, asked), device, Ranks(), None, chosen)
        assert taken(config, "amp_dtype", "loss_scale") == ("bfloat16", 1.0)
        assert "128.0 is not used" in " ".join(told)


def test_an_o0_run_resumes_at_a_half_level_on_either_device():
    asked, chosen = saved_by()
    merged = merge_with_checkpoint({"opt_level": "O2"}, asked)
    assert resolve_config(merged, CUDA, Ranks(), None, chosen)[0].amp_dtype == "float16"
    assert resolve_config(merged, CPU, Ranks(), None, chosen)[0].amp_dtype == "bfloat16"

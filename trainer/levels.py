"""What O0..O3 stand for: the levels of NVIDIA apex's former ``amp``, as the option table its logs print."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class LevelOptions:
    """What a level stands for; the fields and their order are those that apex printed."""

    enabled: bool
    opt_level: str
    cast_model_type: torch.dtype | None
    patch_torch_functions: bool
    keep_batchnorm_fp32: bool | None
    master_weights: bool | None
    loss_scale: float | str

    def lines(self) -> list[str]:
        return [f"{field.name:<23}: {getattr(self, field.name)}" for field in dataclasses.fields(self)]


MEANINGS = {
    "O0": "Pure FP32 training.",
    "O1": "Insert automatic casts around Pytorch functions and Tensor methods.",
    "O2": "FP16 training with FP32 batchnorm and FP32 master weights.",
    "O3": "Pure FP16 training.",
}


def level_options(opt_level: str, half: torch.dtype) -> LevelOptions:
    """The defaults of a level. bfloat16 has float32's range: its loss scale is 1 at every level."""
    dynamic = "dynamic" if half is torch.float16 else 1.0
    return {
        "O0": LevelOptions(True, "O0", torch.float32, False, None, False, 1.0),
        "O1": LevelOptions(True, "O1", None, True, None, None, dynamic),
        "O2": LevelOptions(True, "O2", half, False, True, True, dynamic),
        "O3": LevelOptions(True, "O3", half, False, False, False, 1.0),
    }[opt_level]


def override_options(options: LevelOptions, keep_batchnorm_fp32: bool | None, loss_scale: Any) -> LevelOptions:
    changes = {"keep_batchnorm_fp32": keep_batchnorm_fp32, "loss_scale": loss_scale}
    return dataclasses.replace(options, **{key: value for key, value in changes.items() if value is not None})


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

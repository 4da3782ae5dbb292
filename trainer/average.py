"""``--model-ema``: a running average of weights and buffers beside the model (Polyak and Juditsky, 1992)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from trainer.precision import Precision

Tensors = tuple[Tensor, ...] | list[Tensor]


def warming_up(decay: float) -> Callable[[Tensors, Tensors, Tensor | int], None]:
    """A ``multi_avg_fn``: update t keeps min(decay, (1 + t) / (10 + t)) of the average, so that the random weights of
    the start are soon forgotten. Tensors that hold no fractions, such as batch norm's count of batches, are copied."""

    @torch.no_grad()
    def update(averages: Tensors, values: Tensors, count: Tensor | int) -> None:
        if not averages[0].is_floating_point() and not averages[0].is_complex():
            torch._foreach_copy_(averages, values)
            return
        kept = min(decay, float((1 + count) / (10 + count)))
        torch._foreach_lerp_(averages, values, 1 - kept)

    return update


class WeightAverage(AveragedModel):
    """The average of a model's parameters and buffers, of the float32 masters where the model has some.

    ``module`` has the model's structure, strides and evaluation mode; what is half precision in the model is float32
    here, where a share of 1 - decay would else be rounded away. The first update copies, later ones average.
    ``masters``: pairs of a half weight and its master.
    """

    def __init__(self, model: nn.Module, decay: float, masters: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
        take_in = warming_up(decay)
        super().__init__(model, multi_avg_fn=take_in, use_buffers=True)
        self._take_in = take_in
        # AveragedModel counts in a tensor that the host reads at every update, which waits for a GPU.
        del self.n_averaged
        self.updates = 0
        self.module.eval().requires_grad_(False)
        master_of = {id(half): master for half, master in masters}
        by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for average, tensor in zip(_tensors(self.module), _tensors(model), strict=True):
            if average.dtype in (torch.float16, torch.bfloat16):
                average.data = average.data.float()
            averages, sources = by_dtype.setdefault(average.dtype, ([], []))
            averages.append(average)
            sources.append(master_of.get(id(tensor), tensor))
        self._groups = list(by_dtype.values())
        self.restart()

    @torch.no_grad()
    def restart(self) -> None:
        """Forget the past: the average is the model as it is now."""
        self.updates = 0
        for averages, sources in self._groups:
            torch._foreach_copy_(averages, [source.detach() for source in sources])

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model as it is now; the host reads nothing."""
        if self.updates == 0:
            self.restart()
        else:
            for averages, sources in self._groups:
                values = [source.detach().to(averages[0].dtype) for source in sources]
                self._take_in(averages, values, self.updates)
        self.updates += 1

    def to_validate(self, precision: Precision) -> nn.Module:
        """The average as a model that computes as the run's model does: itself, or a copy in the level's dtypes."""
        if precision.options.cast_model_type in (None, torch.float32):
            return self.module
        return precision.convert_model(copy.deepcopy(self.module))

    def state(self, take: Callable[[str, Tensor], Any]) -> dict[str, Any]:
        """For a file; ``take``: from a name and a tensor to what the file gets of it."""
        state = {
            name: take(f"ema {name}", value) if isinstance(value, Tensor) else copy.deepcopy(value)
            for name, value in self.module.state_dict().items()
        }
        return {"state_dict": state, "updates": self.updates}

    def load(self, state: dict[str, Any]) -> None:
        """Inverse of ``state``; strides stay the model's."""
        # Into the own state dict: it carries the modules' versions, without which mnasnet refuses to load.
        versioned = self.module.state_dict()
        versioned.update(state["state_dict"])
        self.module.load_state_dict(versioned)
        self.updates = int(state["updates"])


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    return chain(module.parameters(), module.buffers())

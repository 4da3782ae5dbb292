"""The training loop people write by hand, at each level of precision: what bench_step.py measures ours against."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from trainer.config import TrainConfig
from trainer.levels import DTYPES
from trainer.memory_format import resolve_memory_format
from trainer.models import TrainingLoss, build_model


class BareLoop:
    """Model, loss, fused SGD and nothing else: no metric, no guard, no log, no schedule."""

    def __init__(self, config: TrainConfig, device: torch.device, lr: float) -> None:
        """``config``: resolved settings."""
        self.device = device
        self.half = DTYPES[config.amp_dtype]
        torch.manual_seed(config.seed)
        model = build_model(config.arch, config.num_classes or 1000)
        self.model = model.to(device, memory_format=resolve_memory_format(config.channels_last)).train()  # type: ignore[call-overload]
        self._cast(config.opt_level or "O0", keep_batchnorm=bool(config.keep_batchnorm_fp32))
        weights = list(self.model.parameters())
        self._masters = [w.detach().float().requires_grad_() for w in weights] if config.opt_level == "O2" else []
        self._weights = weights if self._masters else []
        self._optimizer = torch.optim.SGD(
            self._masters or weights,
            lr=lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            fused=True if device.type in ("cpu", "cuda") else None,
        )
        self._autocast = config.opt_level == "O1"
        self._criterion = TrainingLoss()
        self._scaler = torch.amp.GradScaler(device.type, enabled=config.loss_scale == "dynamic")

    def _cast(self, level: str, keep_batchnorm: bool) -> None:
        if level not in ("O2", "O3"):
            return
        for module in self.model.modules():
            if keep_batchnorm and isinstance(module, _BatchNorm):
                continue
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor.is_floating_point():
                    tensor.data = tensor.data.to(self.half)

    def run(self, batches: Sequence[tuple[Tensor, Tensor]], steps: int) -> Tensor:
        """``steps`` optimizer steps over the batches in turn; the last loss, on the device."""
        loss = torch.zeros(())
        for images, target in itertools.islice(itertools.cycle(batches), steps):
            with torch.autocast(self.device.type, dtype=self.half, enabled=self._autocast):
                output = self.model(images)
            loss = self._criterion(output, target)
            self._optimizer.zero_grad(set_to_none=True)
            for weight in self._weights:
                weight.grad = None
            self._scaler.scale(loss).backward()
            self._update()
        return loss.detach()

    @torch.no_grad()
    def _update(self) -> None:
        for weight, master in zip(self._weights, self._masters, strict=True):
            master.grad = None if weight.grad is None else weight.grad.float()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if self._masters:
            torch._foreach_copy_(self._weights, self._masters)

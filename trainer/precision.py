"""O0..O3 on native torch: autocast, loss scale and float32 master weights behind one object.

The training loop has no branch on the level; what each stands for is in ``trainer/levels.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainer.levels import LevelOptions, dtype_name


class Precision:
    """One run's precision. Order of calls: ``convert_model``, ``bind``, then per step ``autocast``,
    ``backward``, ``collect_gradients``, ``step``.

    A GradScaler is always there. Under a dynamic scale it takes the steps; under a fixed one a fused
    optimizer is told directly which steps to skip, and of one without a fused form the host asks.
    """

    def __init__(self, options: LevelOptions, half: torch.dtype, device: torch.device) -> None:
        self.options = options
        self.half = half
        self.device = device
        self.dynamic = options.loss_scale == "dynamic"
        scale = 65536.0 if self.dynamic else float(options.loss_scale)
        self._fixed_scale = None if self.dynamic else scale
        self._scaler = torch.amp.GradScaler(device.type, init_scale=scale)
        self.masters: list[tuple[nn.Parameter, nn.Parameter]] = []  # half weight, its master
        self.stepped: list[nn.Parameter] = []  # what the optimizer steps, in the order of the model
        self._one = torch.ones((), device=device)
        self._nan = torch.full((), float("nan"), device=device)
        self._zero = torch.zeros((), device=device)

    @property
    def input_dtype(self) -> torch.dtype:
        """What images are normalised into: half for a half model, else float32."""
        cast = self.options.cast_model_type
        return torch.float32 if cast is None else cast

    def convert_model(self, model: nn.Module) -> nn.Module:
        """Cast floating parameters and buffers in place, batch norm apart where it stays float32."""
        dtype = self.options.cast_model_type
        if dtype in (None, torch.float32):
            return model
        for module in model.modules():
            if self.options.keep_batchnorm_fp32 and isinstance(module, _BatchNorm):
                continue
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor.is_floating_point():
                    tensor.data = tensor.data.to(dtype)
        return model

    def bind(self, model: nn.Module) -> list[nn.Parameter]:
        """Make the master weights and return what the optimizer steps, in ``model.parameters()`` order."""
        self.masters, self.stepped = [], []
        for parameter in model.parameters():
            if not parameter.requires_grad:
                continue
            if self.options.master_weights and parameter.dtype is not torch.float32:
                master = nn.Parameter(parameter.detach().float())  # keeps the strides of a dense tensor
                self.masters.append((parameter, master))
                self.stepped.append(master)
            else:
                self.stepped.append(parameter)
        return list(self.stepped)

    def autocast(self) -> torch.autocast:
        """A fresh context for one forward pass: one that spans steps would keep stale half copies."""
        enabled = self.options.patch_torch_functions
        return torch.autocast(self.device.type, dtype=self.half if enabled else None, enabled=enabled)

    def backward(self, loss: Tensor) -> None:
        self._scaler.scale(loss).backward()

    @torch.no_grad()
    def collect_gradients(self) -> Tensor:
        """Bring the gradients to where the optimizer reads them; their norm, loss scale taken out (device scalar)."""
        with_gradient = [(half, master) for half, master in self.masters if half.grad is not None]
        for half, master in self.masters:
            if half.grad is None:
                master.grad = None
            elif master.grad is None:
                master.grad = torch.empty_like(master)
        if with_gradient:
            torch._foreach_copy_([m.grad for _, m in with_gradient], [h.grad for h, _ in with_gradient])  # type: ignore[misc]
        return torch.linalg.vector_norm(torch.stack(_norms(self._gradients()))) / self.scale_on_device()

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, norm: Tensor, bad: Tensor, clip_norm: float | None) -> None:
        """One optimizer update, or none where ``bad`` > 0; decided on the device.

        Clipping multiplies the scaled gradients: the same as unscaling first, and it works for half
        gradients too, which ``GradScaler.unscale_`` refuses.
        """
        gradients = self._gradients()
        if clip_norm is not None:
            _scale_all(gradients, torch.clamp(clip_norm / (norm + 1e-6), max=1.0))
        if self.dynamic:
            self._step_with_scaler(optimizer, bad, gradients)
        elif is_fused(optimizer):
            self._step_with_fixed_scale(optimizer, bad)
        elif not float(bad):  # waits for the device
            if self._fixed_scale != 1.0:
                _scale_all(gradients, self.scale_on_device().reciprocal())
            optimizer.step()
        self.refresh_model()

    def _step_with_fixed_scale(self, optimizer: Any, bad: Tensor) -> None:
        """What ``GradScaler.step`` hands a fused optimizer, without the scaler's own pass over the gradients:
        ``bad`` knows already what that would find (1.5 % of a small model's step on a CPU)."""
        optimizer.grad_scale = None if self._fixed_scale == 1.0 else self.scale_on_device()
        optimizer.found_inf = bad
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf

    def _step_with_scaler(self, optimizer: torch.optim.Optimizer, bad: Tensor, gradients: list[Tensor]) -> None:
        """``bad`` enters as a NaN in the smallest gradient, since ``GradScaler.step`` overwrites ``found_inf``."""
        smallest = min(gradients, key=torch.numel)
        smallest.add_(torch.where(bad > 0, self._nan, self._zero).to(smallest.dtype))
        self._scaler.step(optimizer)
        self._scaler.update()

    @torch.no_grad()
    def refresh_model(self) -> None:
        """Copy the master weights into the half model."""
        if self.masters:
            torch._foreach_copy_([half for half, _ in self.masters], [master for _, master in self.masters])

    def scale_on_device(self) -> Tensor:
        """The loss scale as a device scalar, read without a host sync."""
        return self._scaler.scale(self._one)

    def scale(self) -> float:
        """The loss scale as a number; waits for the device."""
        return float(self._scaler.get_scale())

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.stepped if parameter.grad is not None]

    def model_state(self, model: nn.Module, take: Callable[[str, Tensor], Tensor]) -> dict[str, Any]:
        """The model for a file: the masters where there are some. ``take``: from a name and a tensor to what the
        file gets of it."""
        masters = {id(half): master for half, master in self.masters}
        state: dict[str, Any] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor):
                state[name] = take(name, masters.get(id(tensor), tensor).detach())
            else:
                state[name] = copy.deepcopy(tensor)  # a module's extra state
        return state

    @torch.no_grad()
    def load_model_state(self, model: nn.Module, state: dict[str, Any]) -> None:
        """Inverse of ``model_state``, for any level that saved it; strides stay the model's."""
        # Into the model's own state dict: it carries the modules' versions, without which mnasnet refuses to load.
        versioned = model.state_dict()
        versioned.update(state)
        model.load_state_dict(versioned)
        names = {id(parameter): name for name, parameter in model.named_parameters(remove_duplicate=False)}
        for half, master in self.masters:
            master.copy_(state[names[id(half)]])

    def state_dict(self) -> dict[str, Any]:
        """Scale and growth tracker of a dynamic scale, as plain numbers."""
        return {"loss_scale": self._scaler.state_dict() if self.dynamic else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A fixed scale is what the flags say; only a dynamic one goes on from the file."""
        if self.dynamic and state.get("loss_scale"):
            self._scaler.load_state_dict(state["loss_scale"])

    def describe(self, model: nn.Module) -> dict[str, str]:
        """The real dtypes, read off the model's tensors."""
        weights = [p for m in model.modules() if not isinstance(m, _BatchNorm) for p in m.parameters(recurse=False)]
        weight = next((p for p in weights if p.dim() == 4), next(iter(weights), None))
        norms = [p for m in model.modules() if isinstance(m, _BatchNorm) for p in m.parameters(recurse=False)]
        return {
            "conv weight": dtype_name(weight.dtype) if weight is not None else "none",
            "batch norm": dtype_name(norms[0].dtype) if norms else "none",
            "master weights": "float32" if self.masters else "none",
            "input": dtype_name(self.input_dtype),
        }

    def describe_scaling(self) -> dict[str, str]:
        return {
            "autocast": dtype_name(self.half) if self.options.patch_torch_functions else "off",
            "loss scale": "dynamic" if self.dynamic else f"fixed at {self._fixed_scale:g}",
        }


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the device alone decides if a step is taken."""
    return all(group.get("fused") for group in optimizer.param_groups)


def _norms(gradients: list[Tensor]) -> list[Tensor]:
    """Float32 L2 norms; those of wider types (float64, complex) one by one, since a foreach refuses to narrow them."""
    narrow = [gradient for gradient in gradients if gradient.element_size() <= 4]
    wide = [torch.linalg.vector_norm(gradient).float() for gradient in gradients if gradient.element_size() > 4]
    return [*(torch._foreach_norm(narrow, 2, dtype=torch.float32) if narrow else ()), *wide]


def _scale_all(gradients: list[Tensor], factor: Tensor) -> None:
    """Times a float32 device scalar; half gradients one by one, since a foreach wants the factor in their dtype."""
    full = [gradient for gradient in gradients if gradient.dtype is torch.float32]
    if full:
        torch._foreach_mul_(full, factor)
    for gradient in gradients:
        if gradient.dtype is not torch.float32:
            gradient.mul_(factor)

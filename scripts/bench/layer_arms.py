"""One module, timed alone in both memory formats: forward and backward on inputs like those met in the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import stopwatch
import torch
from both_formats import CHANNELS_LAST, CONTIGUOUS
from layer_calls import LayerCase, TensorSpec, cliffs_of, leaves_of, map_leaves
from torch import Tensor, nn

from trainer.memory_format import resolve_memory_format


class LayerArm:
    """Calls of one module in one format; parameters and the gradient that comes in lie in that format too."""

    def __init__(
        self, module: nn.Module, case: LayerCase, memory_format: str, half: torch.dtype, device: torch.device
    ) -> None:
        self._module = module
        self._case = case
        self._format = resolve_memory_format(memory_format == CHANNELS_LAST)
        self._half = half
        self._device = device
        self._weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._sources = {id(spec): spec.make(device, self._format) for spec in leaves_of(case.inputs, TensorSpec)}
        self._gradients: list[Tensor] | None = None

    def call(self) -> Iterator[None]:
        """Two timed parts, forward and backward; the second is empty where the model has no backward pass there."""
        takes_gradient: list[Tensor] = []
        args, kwargs = map_leaves(lambda leaf: self._fresh(leaf, takes_gradient), self._case.inputs)
        autocast = torch.autocast(self._device.type, dtype=self._half, enabled=self._case.autocast)
        with torch.set_grad_enabled(self._case.grad), autocast:
            yield
            output = self._module(*args, **kwargs)
            yield
        outputs = [tensor for tensor in leaves_of(output, Tensor) if tensor.requires_grad]
        wanted = [*takes_gradient, *self._weights]
        if self._gradients is None:
            self._gradients = [self._gradient_like(tensor) for tensor in outputs]
        yield
        if outputs and wanted:
            torch.autograd.grad(outputs, wanted, self._gradients, allow_unused=True)
        yield

    def _fresh(self, leaf: Any, takes_gradient: list[Tensor]) -> Any:
        """A copy an in-place module may write to: no leaf of the graph, and the next call finds the values as they were."""
        if not isinstance(leaf, TensorSpec):
            return leaf
        source = self._sources[id(leaf)]
        if not (leaf.requires_grad and self._case.grad):
            return source.clone()
        source = source.detach().requires_grad_()
        takes_gradient.append(source)
        return source.clone()  # its backward hands the gradient on as it is

    def _gradient_like(self, output: Tensor) -> Tensor:
        return TensorSpec(tuple(output.shape), output.dtype, False).make(self._device, self._format)


@dataclass(frozen=True)
class LayerResult:
    """A case and what it took a call, or why it could not be timed alone."""

    case: LayerCase
    cliffs: list[str]
    times: stopwatch.Times | None = None
    problem: str | None = None

    @property
    def factor(self) -> stopwatch.Factor:
        assert self.times is not None
        return self.times.factor(CHANNELS_LAST, CONTIGUOUS)

    @property
    def verdict(self) -> str:
        return "not timed" if self.times is None else self.factor.verdict

    def seconds(self, memory_format: str) -> float:
        """Of all its calls in a step."""
        return 0.0 if self.times is None else len(self.case.names) * self.times.median(memory_format)

    @property
    def loss(self) -> float:
        """Seconds a step that channels-last costs (gains, where negative) in the calls that meet it in the model."""
        if self.times is None:
            return 0.0
        return self.case.met * self.times.difference(CHANNELS_LAST, CONTIGUOUS)

    def record(self) -> dict[str, Any]:
        """Plain types for the JSON file; seconds."""
        case = self.case
        content: dict[str, Any] = {
            "modules": case.names,
            "module": case.module,
            "input": case.shapes,
            "calls": len(case.names),
            "calls_that_meet_channels_last": case.met,
            "cliffs": self.cliffs,
            "verdict": self.verdict,
        }
        if self.times is None:
            return {**content, "problem": self.problem}
        arms = (CONTIGUOUS, CHANNELS_LAST)
        return {
            **content,
            "forward_s": {arm: self.times.median(arm, 0) for arm in arms},
            "backward_s": {arm: self.times.median(arm, 1) for arm in arms},
            "call_s": {arm: self.times.median(arm) for arm in arms},
            "rounds_s": {arm: self.times.totals(arm) for arm in arms},
            "factor": self.factor.median,
            "factor_spread": list(self.factor.spread),
            "loss_s_a_step": self.loss,
        }


def time_layer(
    models: Mapping[str, nn.Module],
    case: LayerCase,
    half: torch.dtype,
    device: torch.device,
    rounds: int,
    warmup_rounds: int,
    min_seconds: float,
) -> LayerResult:
    """Both formats in turns. ``models``: the same model in each format, by name of the format."""
    modules = {name: model.get_submodule(case.names[0]) for name, model in models.items()}
    cliffs = cliffs_of(modules[CONTIGUOUS])
    try:
        arms = {name: LayerArm(module, case, name, half, device).call for name, module in modules.items()}
        return LayerResult(case, cliffs, stopwatch.measure(arms, device, rounds, warmup_rounds, min_seconds))
    except Exception as error:  # a module may need more of its model than an input of the right shape
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return LayerResult(case, cliffs, problem=problem)

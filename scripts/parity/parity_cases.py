"""What check_parity compares: one model, one batch, and arms that differ in memory format or opt level."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from parity_layers import (
    FLOOR,
    FLOOR_OF_MODULE,
    Difference,
    Forcer,
    Recorder,
    distance,
    norm,
    relative,
    watched,
    whole_norm,
)
from torch import Tensor, nn

from trainer.environment import seed_everything
from trainer.errors import UserError
from trainer.levels import DTYPES, level_options, override_options
from trainer.memory_format import apply_to_model, memory_format_name, resolve_memory_format
from trainer.models import TrainingLoss, main_output
from trainer.precision import Precision

TOLERANCES = {"float32": 1e-4, "half": 2e-2}  # relative L2
_FLOAT16_SCALE = 1024.0  # a fixed loss scale, the same in both arms and taken out of the gradients: a power of two


@dataclass(frozen=True)
class Arm:
    """How a step is computed. ``batch_channels_last``: None for the model's own format."""

    opt_level: str
    amp_dtype: str
    channels_last: bool
    batch_channels_last: bool | None = None

    @property
    def tolerance(self) -> float:
        return TOLERANCES["float32" if self.opt_level == "O0" else "half"]

    @property
    def name(self) -> str:
        dtype = "float32" if self.opt_level == "O0" else self.amp_dtype
        return f"{self.opt_level} ({dtype}), {memory_format_name(resolve_memory_format(self.channels_last))}"

    def precision(self, device: torch.device) -> Precision:
        half = DTYPES[self.amp_dtype]
        scale = _FLOAT16_SCALE if half is torch.float16 else 1.0
        return Precision(override_options(level_options(self.opt_level, half), None, scale), half, device)


class ArmFailed(UserError):
    """The model cannot run in an arm at all."""


@contextlib.contextmanager
def failures_named(arm: Arm) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise ArmFailed(f"the model fails in {arm.name}: {' '.join(str(error).split())[:200]}") from error


@dataclass(frozen=True)
class Case:
    """A float32 model with settled batch-norm statistics, and one batch: images (N, C, H, W), target (N,)."""

    name: str
    model: nn.Module
    images: Tensor
    target: Tensor
    seed: int = 0


@dataclass(frozen=True)
class Step:
    """Loss, logits (N, classes), gradients and buffers by name."""

    loss: float
    logits: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


@dataclass
class Check:
    """One comparison. ``facts`` about two free steps are printed and written, not judged; ``error``: why an arm failed."""

    name: str
    tolerance: float
    differences: list[Difference] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def failed(self) -> list[Difference]:
        """What differs, in the order in which it was met: forward, then backward."""
        return [found for found in self.differences if not found.value <= self.tolerance]

    @property
    def passed(self) -> bool:
        return self.error is None and not self.failed

    def ranked(self) -> list[Difference]:
        """The worst first."""
        return sorted(self.differences, key=lambda found: -found.value)


def make_case(name: str, model: nn.Module, shape: Sequence[int], num_classes: int, device: torch.device) -> Case:
    """The model on the device with statistics that fit a random batch of ``shape`` (N, C, H, W). Raises UserError."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(tuple(shape), generator=generator).to(device)
    target = torch.randint(num_classes, (shape[0],), generator=generator).to(device)
    model = model.to(device).float()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"{name}: this model has no parameter to train")
    seed_everything(0)
    try:
        # New statistics (0 and 1) would let the activations of evaluation mode grow from layer to layer.
        torch.optim.swa_utils.update_bn([images, images], model)
        model.eval()
        with torch.no_grad():
            model(images)
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{name} cannot take a batch of {tuple(shape)}: {reason}; give another --image-size or -b"
        ) from error
    return Case(name, model, images, target)


def take_step(case: Case, arm: Arm, training: bool, watcher: Recorder | Forcer | None = None) -> Step:
    """Forward and backward pass on copies, from the same weights and random numbers in every arm."""
    precision = arm.precision(case.images.device)
    model = apply_to_model(copy.deepcopy(case.model), resolve_memory_format(arm.channels_last)).train(training)
    precision.convert_model(model)
    own = arm.channels_last if arm.batch_channels_last is None else arm.batch_channels_last
    images = case.images.to(precision.input_dtype, memory_format=resolve_memory_format(own))
    seed_everything(case.seed)
    with watched(model, watcher), precision.autocast():
        output = model(images)
    loss = TrainingLoss()(output, case.target)
    precision.backward(loss)
    scale = precision.scale()
    gradients = {name: p.grad.float() / scale for name, p in model.named_parameters() if p.grad is not None}
    buffers = {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    return Step(loss.item(), main_output(output).detach(), gradients, buffers)


@torch.no_grad()
def logits_of(case: Case, arm: Arm) -> Tensor:
    """Evaluation-mode logits (N, classes) in float32."""
    precision = arm.precision(case.images.device)
    model = apply_to_model(copy.deepcopy(case.model), resolve_memory_format(arm.channels_last)).eval()
    precision.convert_model(model)
    own = arm.channels_last if arm.batch_channels_last is None else arm.batch_channels_last
    with precision.autocast():
        output = model(case.images.to(precision.input_dtype, memory_format=resolve_memory_format(own)))
    return main_output(output).float()


def compare_steps(case: Case, baseline: Arm, candidate: Arm, training: bool) -> Check:
    """A recorded step of ``baseline``, the same step of ``candidate`` layer by layer, and both once more, free."""
    mode = "train" if training else "eval"
    check = Check(f"{case.name}, {mode}: {candidate.name} against {baseline.name}", _coarser(baseline, candidate))
    recorder = Recorder()
    with failures_named(baseline):
        recorded, other = take_step(case, baseline, training, recorder), take_step(case, baseline, training)
    forcer = Forcer(recorder.values)
    try:
        with failures_named(candidate):
            forced, free = take_step(case, candidate, training, forcer), take_step(case, candidate, training)
    except ArmFailed as error:
        check.error = str(error)
        return check
    check.differences += forcer.differences
    check.differences += compare_gradients(forced.gradients, recorded.gradients)
    check.differences += compare_buffers(forced.buffers, recorded.buffers)
    check.differences.append(Difference("model", "logits", relative(forced.logits, recorded.logits)))
    check.facts["loss"] = abs(free.loss - other.loss) / max(abs(other.loss), 1e-30)
    apart = [distance(free.gradients[name], gradient) for name, gradient in other.gradients.items()]
    whole = whole_norm(other.gradients.values())
    check.facts["whole gradient"] = sum(value**2 for value in apart) ** 0.5 / max(whole, 1e-30)
    return check


def compare_gradients(one: Mapping[str, Tensor], baseline: Mapping[str, Tensor]) -> list[Difference]:
    """Relative L2 of each parameter's gradient, the denominator at least ``FLOOR`` of the whole model's gradient norm
    and ``FLOOR_OF_MODULE`` of that of its module.

    A gradient that is zero but for rounding (a bias before batch norm) is all rounding in both arms, and its rounding is
    that of the weight beside it, which adds up the same output gradients.
    """
    floor = FLOOR * whole_norm(baseline.values())
    modules: dict[str, list[Tensor]] = {}
    for name, gradient in baseline.items():
        modules.setdefault(name.rpartition(".")[0], []).append(gradient)
    floors = {module: max(floor, FLOOR_OF_MODULE * whole_norm(own)) for module, own in modules.items()}
    alone = [Difference(name, "gradient", float("inf")) for name in sorted(one.keys() ^ baseline.keys())]
    return alone + [
        Difference(name, "gradient", relative(one[name], gradient, floors[name.rpartition(".")[0]]))
        for name, gradient in baseline.items()
        if name in one
    ]


def compare_buffers(one: Mapping[str, Tensor], baseline: Mapping[str, Tensor]) -> list[Difference]:
    """Relative L2 of each buffer; of a running mean relative to the deviation, where that is larger."""
    found = []
    for name, buffer in baseline.items():
        variance = baseline.get(f"{name.removesuffix('running_mean')}running_var")
        floor = norm(variance.float().sqrt()) if name.endswith("running_mean") and variance is not None else 0.0
        found.append(Difference(name, "buffer", relative(one[name], buffer, floor)))
    return found


def compare_format_pairs(case: Case, arm: Arm) -> Check:
    """Evaluation logits of the four model/batch format pairs against contiguous ones; each pair twice, bit for bit.

    Rounding adds up over the depth here, so the tolerance is at least twice the contiguous arm's own error
    against float32.
    """
    exact = logits_of(case, Arm("O0", arm.amp_dtype, False, False))
    base = logits_of(case, Arm(arm.opt_level, arm.amp_dtype, False, False))
    check = Check(f"{case.name}, eval logits of all format pairs: {arm.opt_level}", arm.tolerance)
    check.tolerance = max(arm.tolerance, 2 * relative(base, exact))
    for of_model in (False, True):
        for of_batch in (False, True):
            pair = Arm(arm.opt_level, arm.amp_dtype, of_model, of_batch)
            words = [memory_format_name(resolve_memory_format(last)) for last in (of_model, of_batch)]
            name = f"model {words[0]}, batch {words[1]}"
            try:
                with failures_named(pair):
                    found, again = logits_of(case, pair), logits_of(case, pair)
            except ArmFailed as error:
                check.error = f"{name}: {error}"
                continue
            check.differences.append(Difference(name, "logits", relative(found, base)))
            equal = 0.0 if torch.equal(found, again) else float("inf")
            check.differences.append(Difference(name, "the same again", equal))
    return check


def _coarser(one: Arm, other: Arm) -> float:
    return max(one.tolerance, other.tolerance)

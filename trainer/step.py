"""One optimizer step: forward, backward, guard, update."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from trainer.average import WeightAverage
from trainer.bad_images import BadImages
from trainer.distributed import Group
from trainer.errors import NonFiniteError
from trainer.guard import LONGEST_ROW, BufferGuard, GuardReport, StepGuard, poison
from trainer.memory_format import check_stride_orders
from trainer.metrics import RunningSums
from trainer.models import TrainingLoss, main_output
from trainer.optim import set_lr
from trainer.precision import Precision
from trainer.profiling import StepProfiler
from trainer.timing import StepTimer


class Plan(Protocol):
    """One optimizer step: images over all ranks, and the sizes of this rank's batches."""

    @property
    def images(self) -> int: ...
    @property
    def batch_sizes(self) -> tuple[int, ...]: ...


class FirstStep(Protocol):
    """What looks at the first batch of a start and acts once its step is over."""

    def saw(self, images: Tensor, target: Tensor) -> None: ...
    def after_first_step(self, compute_seconds: float) -> None: ...


@dataclass(frozen=True)
class Loaded:
    """A batch on the device; a dummy stands in for one with too few readable images."""

    images: Tensor
    target: Tensor
    is_last: bool
    is_dummy: bool = False

    @classmethod
    def of(cls, images: Tensor, target: Tensor, planned: int, is_last: bool) -> Loaded:
        """The batch itself, or two images of noise where fewer than two of ``planned`` could be read: every
        rank takes part in every step, batch norm needs two values a channel, and a model that divides by an
        image's spread needs one that has it."""
        if len(target) >= min(2, planned):
            return cls(images, target, is_last)
        # Strides of the real thing, which mean the memory format even without an image.
        shape, strides = (2, *images.shape[1:]), images.stride()
        noise = torch.empty_strided(shape, strides, dtype=images.dtype, device=images.device)
        noise.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
        return cls(noise, target.new_zeros((2, *target.shape[1:])), is_last, is_dummy=True)


@dataclass(frozen=True)
class Health:
    """Host copy of what the device knows about the steps so far."""

    loss_scale: float
    grad_norm: float
    guard: GuardReport

    @property
    def skipped_steps(self) -> int:
        return self.guard.skipped


class Stepper:
    """Takes steps. ``model`` is the plain module, ``wrapped`` what training's forward pass calls
    (DistributedDataParallel, compiled, or the same module)."""

    def __init__(
        self,
        model: nn.Module,
        wrapped: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: Precision,
        group: Group,
        label_smoothing: float = 0.0,
        clip_grad_norm: float | None = None,
        micro_batch: int | None = None,
    ) -> None:
        self.model = model
        self.wrapped = wrapped
        self.optimizer = optimizer
        self.precision = precision
        self.buffers = BufferGuard(model)
        self._group = group
        self._criterion = TrainingLoss(label_smoothing)
        self._clip_grad_norm = clip_grad_norm
        self._micro_batch = micro_batch
        self.frozen: list[nn.Module] = []  # layers that stay in evaluation mode
        self.average: WeightAverage | None = None  # of the weights, where the run keeps one
        self.bad_images: BadImages | None = None  # the run's policy towards unreadable images, where it has one
        self._guard = StepGuard(group.device, sticky=not precision.dynamic)
        self._norm = torch.zeros((), device=group.device)
        self._checked = False

    def start(self, skipped_steps: int, bad_row: int = 0) -> None:
        """Take the present buffers as good and go on counting skipped steps from a checkpoint's."""
        self.buffers.accept()
        self._guard.restore(skipped_steps, bad_row)

    def train_mode(self) -> None:
        self.wrapped.train()
        for module in self.frozen:
            module.eval()

    def step(
        self,
        step: int,
        plan: Plan,
        batches: Iterator[tuple[Tensor, Tensor]],
        lr: float,
        sums: RunningSums,
        timer: StepTimer,
        profiler: StepProfiler,
    ) -> int:
        """Attempt update number ``step`` (0-based) from the batches of ``plan``. Returns the images it took,
        over all ranks: as planned, or fewer where bad images are skipped. Without any there is no update."""
        set_lr(self.optimizer, lr)
        loaded, taken = self._load(plan, batches, timer), plan.images
        if self.bad_images is not None and self.bad_images.skips:
            # All batches of the step at once: the weight of the first needs the count of the last.
            loaded = iter(complete := list(loaded))
            taken = self.bad_images.settle("train", sum(len(batch.target) for batch in complete if not batch.is_dummy))
            if not taken:
                self._norm = torch.zeros_like(self._norm)  # that of the step before would be reported again
                return 0
        for index, (batch, images, target, last) in enumerate(self._pieces(loaded)):
            # This piece's share of the step's images, since the reduction over ranks is a mean.
            weight = 0.0 if batch.is_dummy else len(target) * self._group.world_size / taken
            with self._reduced_with(last), self._statistics_kept(batch.is_dummy):
                with profiler.range("forward"), self.precision.autocast():
                    output = self.wrapped(images)
                loss = self._criterion(output, target)
                if index == 0:
                    # Freed before the forward pass, they would leave a glibc heap with a free end to give back and to
                    # fault in again: resnet50 b16, 2.0 GB a step against 0.2 to 0.7.
                    self.model.zero_grad(set_to_none=True)
                with profiler.range("backward"):
                    self.precision.backward(poison(loss) * weight)
            if not batch.is_dummy:
                sums.add(loss, main_output(output), target)
        with profiler.range("optimizer"):
            self._update(step, lr)
        return taken

    def leave_out(self, plan: Plan, batches: Iterator[tuple[Tensor, Tensor]], timer: StepTimer) -> int:
        """Pass over the batches of ``plan``; returns the images it took, which is none."""
        for _ in self._load(plan, batches, timer):
            pass
        return 0

    def _load(self, plan: Plan, batches: Iterator[tuple[Tensor, Tensor]], timer: StepTimer) -> Iterator[Loaded]:
        for position, size in enumerate(plan.batch_sizes):
            # Wait for the batch; everything after it is compute.
            timer.waiting()
            images, target = next(batches)
            timer.got_batch()
            assert len(target) <= size, f"the sampler planned {size} images, the loader gave {len(target)}"
            yield Loaded.of(images, target, size, position + 1 == len(plan.batch_sizes))

    @contextlib.contextmanager
    def _statistics_kept(self, kept: bool) -> Iterator[None]:
        """A dummy batch leaves batch norm's running statistics as they were."""
        before = self.buffers.copy() if kept else None
        yield
        if before is not None:
            self.buffers.put_back(before)

    def _pieces(self, loaded: Iterator[Loaded]) -> Iterator[tuple[Loaded, Tensor, Tensor, bool]]:
        """The images and targets of one forward pass each, and whether they are the step's last.

        Whole batches, or even parts of at most ``micro_batch`` images: slices along N keep the memory format.
        """
        for batch in loaded:
            size = len(batch.target)
            parts = -(-size // (self._micro_batch or size))
            # Bad images may leave an odd number: no piece of one, of which batch norm could make nothing.
            if size > 1 and (self._micro_batch or 2) > 1:
                parts = min(parts, size // 2)
            pieces = zip(batch.images.tensor_split(parts), batch.target.tensor_split(parts), strict=True)
            for index, (piece, labels) in enumerate(pieces):
                yield batch, piece, labels, batch.is_last and index + 1 == parts

    def _update(self, step: int, lr: float) -> None:
        self._norm = self.precision.collect_gradients()
        if not self._checked:
            check_stride_orders(self.optimizer, self.precision.masters)
            self._checked = True
        bad = self._guard.judge(self._norm, step, lr)
        self.precision.step(self.optimizer, self._norm, bad, self._clip_grad_norm)
        self.buffers.settle(bad)
        if self.average is not None:
            self.average.update()

    def refuse_no_images(self, images: int) -> None:
        """End the run after an epoch of which bad images left none."""
        if self.bad_images is not None:
            self.bad_images.refuse_none("train", images)

    def health(self) -> Health:
        """Read the counts; waits for the device."""
        return Health(self.precision.scale(), float(self._norm), self._guard.report())

    def raise_if_non_finite(self, health: Health) -> None:
        """End the run where the guard says so: on every rank, since all of them hold the same counts."""
        report, scale = health.guard, health.loss_scale
        if not self.precision.dynamic and report.first_bad_step >= 0:
            level = self.precision.options.opt_level
            hint = "; O3 is a ceiling for speed, --opt-level O2 trains" if level == "O3" else ""
            raise NonFiniteError(
                f"non-finite loss or gradient at step {report.first_bad_step} (learning rate {report.first_bad_lr:g}, "
                f"loss scale {scale:g}): the weights are those before it; lower --lr or look at the data{hint}",
                on_every_rank=True,
                steps=[(bad, bad) for bad in report.own],
            )
        if self.precision.dynamic and (report.longest_row >= LONGEST_ROW or scale < 1):
            raise NonFiniteError(
                f"{report.longest_row} steps in a row up to step {report.last_bad_step} (learning rate {report.last_bad_lr:g}, "
                f"loss scale {scale:g}) had non-finite gradients: none reached the weights; lower --lr, clip with "
                "--clip-grad-norm, or look at the data",
                on_every_rank=True,
                steps=[(report.last_bad_step - max(0, report.longest_row - 1), report.last_bad_step)],
            )

    def _reduced_with(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Gradients are reduced over ranks with the last batch of a step alone."""
        no_sync = getattr(self.wrapped, "no_sync", None)
        return contextlib.nullcontext() if last or no_sync is None else no_sync()

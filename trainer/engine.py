"""The loop: fit, one epoch, the boundary between two steps. Knows no flag and no level of precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from trainer.boundary import Boundary
from trainer.distributed import Group
from trainer.errors import NonFiniteError
from trainer.memory_format import describe_strides
from trainer.metrics import Means, RunningSums, means_of
from trainer.optim import LRSchedule
from trainer.profiling import StepProfiler
from trainer.report import Reporter
from trainer.rewind import Rewinder
from trainer.run_state import Progress, Saver
from trainer.step import FirstStep, Health, Plan, Stepper
from trainer.step_times import StepTimes
from trainer.timing import Clock, StepTimer
from trainer.validation import Scores, ValBatches, Validation


class TrainBatches(Protocol):
    """The training loader, as the loop sees it; ``sampler`` knows the global batch size and what is left over."""

    sampler: Any

    @property
    def steps_in_epoch(self) -> int: ...
    def epoch(self, epoch: int, consumed: int = 0) -> tuple[Iterator[Plan], Iterator[tuple[Tensor, Tensor]]]: ...


@dataclass(frozen=True)
class LoopOptions:
    epochs: int
    print_freq: int
    timing_warmup_steps: int
    val_every: int = 1
    early_stop: int | None = None
    stop_after_epochs: int | None = None
    stop_after_steps: int | None = None


class Engine:
    """One run's loop over epochs."""

    def __init__(
        self,
        stepper: Stepper,
        schedule: LRSchedule,
        group: Group,
        options: LoopOptions,
        report: Reporter,
        saver: Saver,
        profiler: StepProfiler,
    ) -> None:
        self.stepper = stepper
        self.schedule = schedule
        self.group = group
        self.options = options
        self.report = report
        self.saver = saver
        self.profiler = profiler
        self.clock = Clock(group.device)
        self.boundary = Boundary(group)
        self.validation = Validation(stepper, group, report, self.clock, options.print_freq, self.boundary)
        self.progress = Progress()
        self.step_times = StepTimes(False, None, group)
        self._steps_here = 0  # steps and epochs of this start
        self._epochs_here = 0
        self._stop = False
        self._image_size: tuple[int, ...] | None = None  # of the last epoch's images
        self.rewinder: Rewinder | None = None
        self.first_step: FirstStep | None = None  # looks at the first batch and acts once its step is over

    def fit(self, train: TrainBatches, val: ValBatches) -> bool:
        """Train to the last epoch; True when the run is done, False when it was asked to stop before."""
        self.stepper.start(self.progress.skipped_steps, self.progress.bad_row)
        if self.rewinder is not None:
            self.saver.save(self.progress, is_best=False)  # somewhere to go back to
        while not self._is_closed(train, val):
            pass
        self._end_profile()
        return self.is_over()

    def _is_closed(self, train: TrainBatches, val: ValBatches) -> bool:
        """Train as far as this start goes; True once its last save is written, False where the run went back."""
        try:
            while not self.is_over() and self.train_one_epoch(train, val):
                pass
            self.saver.close()
        except NonFiniteError as error:
            self._rewind(error)
            return False
        return True

    def is_over(self) -> bool:
        """Whether the last epoch is done, or --early-stop says that enough of them are."""
        last, wait = self.progress.epoch - 1, self.options.early_stop
        if last + 1 >= self.options.epochs:
            return True
        return wait is not None and self._is_validated(last) and self.progress.epochs_without_better() >= wait

    def _is_validated(self, epoch: int) -> bool:
        return (epoch + 1) % self.options.val_every == 0 or epoch + 1 == self.options.epochs

    def train_one_epoch(self, train: TrainBatches, val: ValBatches) -> bool:
        """One epoch from where ``progress`` stands, its validation and checkpoint; False when the run is to stop."""
        progress = self.progress
        plans, batches = train.epoch(progress.epoch, progress.samples_in_epoch)
        if self.validation.gallery is not None:
            batches = self.validation.gallery.first_kept(batches)
        left = train.sampler.steps_left()
        # The last step of an epoch may be a short one.
        done = progress.samples_in_epoch // train.sampler.global_batch_size if left else train.steps_in_epoch
        steps = done + left
        self.stepper.train_mode()
        sums = RunningSums(self.group.device, progress.epoch_sums, progress.window_sums)
        timer = StepTimer(self.clock, self.options.timing_warmup_steps, steps - done, self.step_times.enabled)
        self.step_times.start(timer, sums)
        self._announce(timer, steps - done)
        self.report.console.start_bar(f"epoch {progress.epoch}", steps, done)
        position = progress.epoch * train.steps_in_epoch
        lr = self.schedule(position + max(0, done - 1))  # what stands where a resumed epoch has no step left
        for index, plan in enumerate(plans, start=done):
            # Forward, backward and update.
            self.profiler.before_step(self._steps_here)
            lr = self.schedule(position + index)
            if progress.leaves_out(progress.step):
                taken = self.stepper.leave_out(plan, batches, timer)
            else:
                shown = self._described(batches) if index == done else batches
                taken = self.stepper.step(progress.step, plan, shown, lr, sums, timer, self.profiler)
            self._count(plan, taken, timer)
            # The host waits for the device in steps that are logged, and in no other.
            logged = self._is_logged(index, steps)
            self.step_times.add(sums, logged)
            if logged:
                self.stepper.raise_if_non_finite(self._log(index, steps, lr, sums, timer))
            if self._steps_here == 1 and self.first_step is not None:
                with timer.paused():
                    self.first_step.after_first_step(timer.compute_seconds())
            if self._cross_boundary(sums, self._stop and index + 1 < steps):
                return self._leave()
        self.step_times.write(progress.epoch, progress.skipped_steps)
        self.report.console.end_bar()
        train_means = means_of(progress.epoch_sums)
        self.stepper.refuse_no_images(train_means.images)
        scores = None
        if self._is_validated(progress.epoch):
            scores = self.validate(val)
            if scores is None:  # asked to stop: the next start validates
                self._save(sums)
                return self._leave()
        self._end_epoch(lr, train_means, scores, timer, train.sampler.dropped)
        return not self._stop or self._leave()

    def _rewind(self, error: NonFiniteError) -> None:
        if self.rewinder is None:
            raise error
        self.report.console.end_bar()
        self.progress = self.rewinder.go_back(error, self.progress, self.saver)

    def _end_profile(self) -> None:
        self.profiler.finish()
        if self.profiler.trace is not None:
            self.report.console.say(f"trace of the profiled steps: {self.profiler.trace}")
        elif self.profiler.first is not None and self.group.is_main:
            self.report.console.notice(
                f"--prof {self.profiler.first}: this start took {self._steps_here} steps only, so there is no trace"
            )

    def _count(self, plan: Plan, taken: int, timer: StepTimer) -> None:
        progress = self.progress
        timer.step_done(taken)
        progress.step += 1
        progress.images_seen += taken
        progress.samples_in_epoch += plan.images
        self._steps_here += 1
        self._stop |= self._steps_here == self.options.stop_after_steps
        self._stop |= self.profiler.after_step(self._steps_here - 1)
        self.report.console.advance()

    def _is_logged(self, index: int, steps: int) -> bool:
        return index == 0 or (index + 1) % self.options.print_freq == 0 or index + 1 == steps

    def _log(self, index: int, steps: int, lr: float, sums: RunningSums, timer: StepTimer) -> Health:
        progress = self.progress
        window = means_of(sums.take(self.group))
        progress.epoch_sums = sums.total
        health = self.stepper.health()
        progress.skipped_steps, progress.bad_row = health.skipped_steps, health.guard.row
        self.report.step(progress, (index + 1, steps), lr, (window, means_of(sums.total)), health, timer)
        return health

    def _end_epoch(self, lr: float, train: Means, scores: Scores | None, timer: StepTimer, dropped: int) -> None:
        progress = self.progress
        is_best = scores is not None and progress.take_score(scores.main.acc1)
        self.report.epoch(progress, lr, train, scores.record() if scores else {}, timer, dropped)
        progress.start_epoch(progress.epoch + 1)
        self.saver.save(progress, is_best)
        self._epochs_here += 1
        self._stop |= self._epochs_here == self.options.stop_after_epochs

    def validate(self, val: ValBatches) -> Scores | None:
        """None where the run is asked to stop."""
        return self.validation.run(val, self.progress.step)

    def _cross_boundary(self, sums: RunningSums, stopping: bool) -> bool:
        """Between two steps: save where that is due, by rank 0's clock too. True where the run is to leave,
        since ``stopping`` says so or a signal."""
        self.saver.check()
        decision = self.boundary.cross(self.saver.due_by_clock())
        leave = stopping or decision.stop > 0
        if leave or decision.save or self.saver.due_by_step(self.progress.step):
            self._save(sums)
        return leave

    def _save(self, sums: RunningSums) -> None:
        """Save inside an epoch. Waits for the device; raises where the guard holds what must not be saved."""
        progress = self.progress
        health = self.stepper.health()
        self.stepper.raise_if_non_finite(health)
        progress.skipped_steps, progress.bad_row = health.skipped_steps, health.guard.row
        progress.window_sums = sums.window().tolist()
        self.saver.save(progress, is_best=False)

    def _leave(self) -> bool:
        """Say how far the run came; it is saved already."""
        progress = self.progress
        self.report.console.end_bar()
        self.step_times.write(progress.epoch, progress.skipped_steps)
        if not self.is_over():
            self.report.console.say(
                f"stopped after step {progress.step} (epoch {progress.epoch}) as asked; --resume goes on from there"
            )
        return False

    def _announce(self, timer: StepTimer, steps: int) -> None:
        if steps and timer.shortened and self._epochs_here == 0:
            left_out = "all but the first" if timer.warmup_steps else "the only one"
            self.report.console.notice(
                f"{steps} steps are too few to leave {self.options.timing_warmup_steps} warm-up steps out of the speed: timing {left_out}"
            )

    def _described(self, batches: Iterator[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        """The same batches; of the first in a start says the real strides, of the first in a later epoch its size
        where that has changed."""
        for images, target in batches:
            size = tuple(images.shape[2:])
            if self._image_size is None:
                self.report.console.say(describe_strides(self.stepper.model, images))
                if self.first_step is not None:
                    self.first_step.saw(images, target)
            elif size != self._image_size:
                self.report.console.say(
                    f"images are {size[0]} x {size[1]} pixels from here on: batch {tuple(images.shape)}"
                )
            self._image_size = size
            yield images, target

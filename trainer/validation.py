"""Loss and accuracy over the validation images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from trainer.boundary import Boundary
from trainer.distributed import Group
from trainer.gallery import Gallery
from trainer.metrics import Means, RunningSums, means_of
from trainer.models import TrainingLoss, main_output
from trainer.report import Reporter
from trainer.step import Stepper
from trainer.timing import Clock, StepTimer


class ValBatches(Protocol):
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


class Validation:
    """Validates the plain module with rank 0's batch-norm statistics; ``print_freq``: batches between lines."""

    def __init__(
        self, stepper: Stepper, group: Group, report: Reporter, clock: Clock, print_freq: int, boundary: Boundary
    ) -> None:
        self._stepper = stepper
        self._group = group
        self._report = report
        self._clock = clock
        self._print_freq = print_freq
        self._boundary = boundary
        self.gallery: Gallery | None = None  # sees every batch, where it is wanted

    @torch.no_grad()
    def run(self, val: ValBatches) -> Means | None:
        """Loss and accuracy over every validation image once, over all ranks; None where the run is asked to stop."""
        model, precision = self._stepper.model, self._stepper.precision
        self._group.broadcast_buffers(model)
        self._stepper.buffers.accept()
        model.eval()
        criterion, sums = TrainingLoss(), RunningSums(self._group.device)
        if self.gallery is not None:
            self.gallery.start_validation()
        timer = StepTimer(self._clock, 0, len(val))
        self._report.console.start_bar("validation", len(val))
        for index, (images, target) in enumerate(val):
            if len(target):  # not all of the batch's images were bad ones
                with precision.autocast():
                    output = main_output(model(images))
                sums.add(criterion(output, target), output, target)
                if self.gallery is not None:
                    self.gallery.add(images, output, target)
            timer.step_done(len(target) * self._group.world_size)
            self._report.console.advance()
            if self._group.is_main and (index == 0 or (index + 1) % self._print_freq == 0 or index + 1 == len(val)):
                window = means_of(sums.take())
                self._report.val_step((index + 1, len(val)), (window, means_of(sums.total)), timer)
            if self._boundary.cross().stop:
                break
        else:
            self._boundary.wait_for_others()  # who may have a batch more
        self._report.console.end_bar()
        if self._boundary.reason is not None:
            return None
        self._settle_bad_images()
        means = means_of(sums.total_over(self._group))
        self._report.console.say(f" * Prec@1 {means.acc1:.3f} Prec@5 {means.acc5:.3f}")
        return means

    def _settle_bad_images(self) -> None:
        bad = self._stepper.bad_images
        if bad is not None:
            bad.settle("val", 0)
            news = bad.news()
            if news:
                self._report.console.notice(news)

"""Loss and accuracy over the validation images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

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


@dataclass(frozen=True)
class Scores:
    """Of one validation. ``main``: of the weights that summary.csv and best.pt follow; ``ema``: of the average where
    the run keeps one; ``raw``: of the weights themselves where ``main`` is the average's."""

    main: Means
    ema: Means | None = None
    raw: Means | None = None

    def record(self) -> dict[str, Any]:
        """``val_loss``, ``val_acc1``, ``val_acc5``; the same as ``val_ema_*`` and ``val_raw_*`` of what there
        is; ``val_images``, their number."""
        found = {"val": self.main, "val_ema": self.ema, "val_raw": self.raw}
        record = {
            f"{prefix}_{key}": getattr(means, key)
            for prefix, means in found.items()
            if means is not None
            for key in ("loss", "acc1", "acc5")
        }
        return {**record, "val_images": self.main.images}


class Validation:
    """Validates the plain module, and the average of its weights where there is one, with rank 0's batch-norm
    statistics; ``print_freq``: batches between lines. ``follows_average``: it is the average that counts."""

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
        self.follows_average = False

    @torch.no_grad()
    def run(self, val: ValBatches, step: int) -> Scores | None:
        """Loss and accuracy over every validation image once, over all ranks, after ``step`` optimizer steps; None where
        the run is asked to stop."""
        precision, models = self._stepper.precision, self._models()
        criterion = TrainingLoss()
        sums = {name: RunningSums(self._group.device) for name in models}
        counts = "ema" if self.follows_average else "raw"
        shown = sums[counts]
        if self.gallery is not None:
            self.gallery.start_validation()
        timer = StepTimer(self._clock, 0, len(val))
        self._report.console.start_bar("validation", len(val))
        for index, (images, target) in enumerate(val):
            if len(target):  # not all of the batch's images were bad ones
                for name, model in models.items():
                    with precision.autocast():
                        output = main_output(model(images))
                    sums[name].add(criterion(output, target), output, target)
                    if self.gallery is not None and name == counts:
                        self.gallery.add(images, output, target)
            timer.step_done(len(target) * self._group.world_size)
            self._report.console.advance()
            if self._group.is_main and (index == 0 or (index + 1) % self._print_freq == 0 or index + 1 == len(val)):
                window = means_of(shown.take())
                self._report.val_step((index + 1, len(val)), (window, means_of(shown.total)), timer)
            if self._boundary.cross().stop:
                break
        else:
            self._boundary.wait_for_others()  # who may have a batch more
        self._report.console.end_bar()
        if self._boundary.reason is not None:
            return None
        found = {name: means_of(each.total_over(self._group)) for name, each in sums.items()}
        self._settle_bad_images(found["raw"].images)
        for name, means in found.items():
            self._report.console.say(
                f" * {'EMA ' if name == 'ema' else ''}Prec@1 {means.acc1:.3f} Prec@5 {means.acc5:.3f}"
            )
        if self.gallery is not None:
            self.gallery.write(self._report.files, step)
        if self.follows_average:
            return Scores(found["ema"], found["ema"], found["raw"])
        return Scores(found["raw"], found.get("ema"))

    def _models(self) -> dict[str, nn.Module]:
        """What is validated on each batch, in evaluation mode."""
        model, average = self._stepper.model, self._stepper.average
        self._group.broadcast_buffers(model)
        self._stepper.buffers.accept()
        models = {"raw": model.eval()}
        if average is not None:
            self._group.broadcast_buffers(average.module)
            models["ema"] = average.to_validate(self._stepper.precision)
        return models

    def _settle_bad_images(self, images: int) -> None:
        bad = self._stepper.bad_images
        if bad is not None:
            bad.settle("val", 0)
            bad.refuse_none("val", images)
            news = bad.news()
            if news:
                self._report.console.notice(news)

"""The audit of a running training: after its first step, on a copy, with nothing of the run changed."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config import TrainConfig
from trainer.distributed import Group
from trainer.layout_audit.report import summary_line, table, to_json
from trainer.layout_audit.state import wrong_optimizer_state
from trainer.layout_audit.step import Findings, audit_training_step
from trainer.models import TrainingLoss
from trainer.optim import build_optimizer
from trainer.precision import Precision
from trainer.run_folder import write_atomically
from trainer.run_log import Console, RunFiles
from trainer.step import Stepper

IMAGES = 2  # strides do not depend on how many there are; batch norm needs two
_LONGEST = 1.0  # seconds that the line nobody asked for may take
_STEPS = 4  # an audit takes about that many times the compute time of a step


class FirstStepAudit:
    """Keeps the first images of a run and audits a copy of the model once the first step is over.

    ``asked``: whether ``--audit-layout`` says so; None leaves it to what the audit would take.
    """

    def __init__(
        self, config: TrainConfig, stepper: Stepper, console: Console, files: RunFiles | None, folder: Path | None
    ) -> None:
        self._config = config
        self._stepper = stepper
        self._console = console
        self._files = files
        self._folder = folder
        self._batch: tuple[Tensor, Tensor] | None = None

    def saw(self, images: Tensor, target: Tensor) -> None:
        """The first batch: images (N, C, H, W) in the run's memory format, target (N,) or (N, classes)."""
        if len(target) >= IMAGES:
            self._batch = images[:IMAGES], target[:IMAGES]

    def after_first_step(self, compute_seconds: float) -> None:
        """Audit and report, where it was asked for or takes next to no time. ``compute_seconds``: of that step."""
        batch, self._batch = self._batch, None
        asked = self._config.audit_layout
        if asked is None and _STEPS * compute_seconds >= _LONGEST:
            return
        if batch is None:
            if asked:
                self._console.notice(f"no layout audit: the first batch held fewer than {IMAGES} images")
            return
        try:
            findings = audit_copy(self._stepper, batch, self._config)
        except Exception as error:  # whatever a copy of someone's model may raise: the run goes on
            if asked:
                self._console.notice(
                    f"no layout audit: a copy of the model raised {type(error).__name__}: "
                    f"{' '.join(str(error).split())[:200]}"
                )
            return
        self._report(findings, bool(asked))

    def _report(self, findings: Findings, details: bool) -> None:
        line = f"layout audit: {summary_line(findings)}"
        more = "" if findings.clean or details else "; --audit-layout writes the details to layout_audit.json"
        self._console.say(line + more)
        if not details or self._files is None or self._folder is None:
            return
        facts = {"arch": self._config.arch, "opt_level": self._config.opt_level, "torch": torch.__version__}
        content = json.dumps(to_json(findings, facts), indent=2)
        write_atomically(self._folder / "layout_audit.json", content + "\n")
        self._files.add_text("layout_audit", "\n".join([line, *table(findings)]))


def first_step_audit(
    config: TrainConfig, stepper: Stepper, console: Console, files: RunFiles | None, folder: Path | None, group: Group
) -> FirstStepAudit | None:
    """The audit of this run, or None where it is not wanted.

    Rank 0 audits for all; SyncBatchNorm talks to the other ranks, so then all of them do, and only when told to.
    """
    asked = config.audit_layout
    together = config.sync_bn and group.world_size > 1
    if asked is None:
        asked = config.channels_last is True and not config.step_times and not together
    if not asked or not config.channels_last or not (group.is_main or together):
        return None
    return FirstStepAudit(config, stepper, console, files, folder)


def audit_copy(stepper: Stepper, batch: tuple[Tensor, Tensor], config: TrainConfig) -> Findings:
    """One training step of a copy of the stepper's model, with a precision and an optimizer of its own."""
    device = batch[0].device
    with random_state_kept(device):
        model = copy.deepcopy(stepper.model)
        precision = Precision(stepper.precision.options, stepper.precision.half, device)
        optimizer = build_optimizer(
            precision.bind(model), 0.0, config.momentum, config.weight_decay, device, config.opt
        )
        findings = audit_training_step(model, batch, precision, optimizer, TrainingLoss(config.label_smoothing))
    findings.state += wrong_optimizer_state(stepper.model, stepper.optimizer)
    return findings


@contextlib.contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Python's, NumPy's and PyTorch's generators go on afterwards as if nothing had drawn from them."""
    python, numpy = random.getstate(), np.random.get_state()
    devices: list[Any] = [] if device.type == "cpu" else [device]
    try:
        with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)

"""What train.py does about its data instead of training: --check-data and --bench-data, from both packages."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from data import preflight_report
from data.addresses import shown
from data.bench import TooFewImages, measure_loader
from data.build import IndexOptions, LoaderOptions, open_indexes
from data.folder import FolderError
from data.preflight import CheckOptions, check_indexes
from data.survey import survey
from trainer.bad_images import BadImages
from trainer.checks import flag_of
from trainer.config import TrainConfig, pick
from trainer.distributed import Group, read_ranks, refuse_ranks
from trainer.errors import BadDataError, UserError
from trainer.hardware import cpu_info, default_workers, usable_cores
from trainer.one_line import printable
from trainer.run_log import Console
from trainer.streams import refuse_lost_output

Outcome = tuple[str, str | None]


def refuse_launchers(config: TrainConfig) -> None:
    """These run in one process; raises UserError where torchrun started several."""
    for key in ("check_data", "bench_data", "summary"):
        if getattr(config, key):
            refuse_ranks(flag_of(key), read_ranks())


def check_data(config: TrainConfig) -> Outcome:
    """Look at every file of the data and say what is wrong. Raises BadDataError where anything is."""
    # Listed anew, so that no list kept from an earlier start hides a new file; a class map that is not there
    # yet is for the training to write.
    keep_map = config.class_map if config.class_map and os.path.exists(config.class_map) else None
    wanted = pick(IndexOptions, config.replace(rescan=True, class_map=keep_map))
    if config.workers is None:
        config = config.replace(workers=default_workers(usable_cores(), 1))
    try:
        more_rules = bool(config.val_labels or config.class_map)
        indexes, findings = survey(config.data_dir or "", lambda: open_indexes(wanted), more_rules)
    except FolderError as error:
        raise UserError(str(error)) from error
    console = Console(True)
    report = check_indexes(indexes, pick(CheckOptions, config), findings, console)
    lines = list(map(printable, preflight_report.as_lines(report)))
    if config.json:
        lines = [json.dumps(preflight_report.as_json(report, _place(config)))]
    for line in lines:
        console.say(line)
    refuse_lost_output()
    if not report.ok:
        raise BadDataError(preflight_report.verdict(report))
    return "done", None


def _place(config: TrainConfig) -> str:
    return config.data_dir or shown(config.train_shards or "")


def bench_data(train_set: Any, config: TrainConfig, group: Group, sizes: Mapping[str, int]) -> Outcome:
    """Time the training loader alone; ``config`` is resolved, ``sizes``: images of each split.

    Raises BadDataError as a training would.
    """
    assert config.bench_data is not None
    assert config.image_size is not None
    bad = BadImages(group, config.bad_images, config.max_bad_images, sizes)
    try:
        speed = measure_loader(
            train_set, config.image_size, pick(LoaderOptions, config), group.device.type, config.bench_data, bad.found
        )
    except TooFewImages as error:
        raise UserError(str(error)) from error
    bad.settle("train", speed.images)
    bad.refuse_none("train", speed.images)
    cpu, cores = cpu_info()[0], usable_cores()
    lines = [*speed.as_lines(), f"CPU: {cpu}, {cores} usable cores"]
    if config.json:
        lines = [json.dumps(speed.as_json(data=_place(config), cpu=cpu, usable_cores=cores))]
    for line in lines:
        Console(True).say(line)
    refuse_lost_output()
    return "done", None

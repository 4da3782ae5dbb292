"""Whether the data of a resumed run is still what its checkpoint was trained on: classes, images, their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.checks import flag_of
from trainer.config import TrainConfig
from trainer.errors import UserError
from trainer.resume import Start

DATA = "data"  # in a checkpoint: what each split held
Contents = Mapping[str, Mapping[str, Any]]


def check_data(start: Start, config: TrainConfig, classes: Sequence[str], contents: Contents) -> None:
    """Note in ``start`` what its data holds, and say what is new since its checkpoint.

    ``contents``: for train and val ``images``, and marks that change with what else decides their order.

    Raises UserError for other classes, and for other training images or another order inside an epoch: a position in
    the epoch's order would mean other samples.
    """
    _check_classes(start, config, classes)
    start.contents = {split: dict(marks) for split, marks in contents.items()}
    if not config.evaluate:
        _check_order(start, config)
    saved = (start.checkpoint or {}).get(DATA)
    if saved is None or config.evaluate:
        return
    where = "--synthetic-size" if config.synthetic else config.data_dir or config.train_shards or ""
    change = _change(saved["train"], contents["train"])
    if change is not None:
        _refuse_inside_an_epoch(start, config, f"{where} has {change[0]} training images", *change[1:])
        start.lines.append(f"note: {where} has {change[0]} training images, the checkpoint's run had {change[1]}")
    change = None if config.synthetic else _change(saved["val"], contents["val"])
    if change is not None:
        start.lines.append(
            f"note: {config.data_dir or config.val_shards} has {change[0]} validation images, the checkpoint's run had "
            f"{change[1]}: accuracies before and after are not of the same ones"
        )


def _change(saved: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str, bool] | None:
    """What there is now, what there was, and whether labels moved; None where it is the same."""
    moved = any(saved.get(key) != now.get(key) for key in ("images", "labels"))
    if not moved and saved.get("names") == now.get("names"):
        return None
    counts = str(now["images"]), str(saved["images"])
    if counts[0] != counts[1]:
        return *counts, True
    return counts[0], f"{counts[1]} others by {'class' if moved else 'name'}", moved


def _refuse_inside_an_epoch(start: Start, config: TrainConfig, now: str, then: str, moved: bool) -> None:
    """Other names alone may be another form of the same images, as shards made of a folder are."""
    if moved and _goes_on_inside_an_epoch(start, config):
        epoch, anew = _epoch_anew(start)
        raise UserError(
            f"{now}, {start.path} was saved inside epoch {epoch} of {then}: its place in the epoch would mean other "
            f"samples; bring the images back, or {anew}",
            True,
        )


def _goes_on_inside_an_epoch(start: Start, config: TrainConfig) -> bool:
    begins_anew = config.start_epoch and config.resume != "auto"
    return bool((start.checkpoint or {}).get("samples_in_epoch")) and not begins_anew


def _epoch_anew(start: Start) -> tuple[int, str]:
    """The epoch a checkpoint lies in, and how to take it from its beginning."""
    epoch = (start.checkpoint or {}).get("epoch", 0)
    anew = f"begin the epoch anew with --resume {start.path} --start-epoch {epoch}" if epoch else "start a new run"
    return epoch, anew


def _check_order(start: Start, config: TrainConfig) -> None:
    """Flags that an epoch's order follows from must stay inside it."""
    for key in ("seed", "ra_reps"):
        then, now = start.saved_resolved.get(key), getattr(config, key)
        if then not in (None, now) and _goes_on_inside_an_epoch(start, config):
            epoch, anew = _epoch_anew(start)
            raise UserError(
                f"{flag_of(key)} {then} -> {now}: {start.path} was saved inside epoch {epoch}, whose order follows from it: "
                f"its place in the epoch would mean other samples; leave the flag as it was, or {anew}",
                True,
            )


def _check_classes(start: Start, config: TrainConfig, classes: Sequence[str]) -> None:
    """The classes a run goes on with must be those it was trained on, by count and by name."""
    saved = (start.checkpoint or {}).get("classes")
    if saved is None:
        return
    count = start.saved_resolved["num_classes"]
    if count != config.num_classes:
        remedy = "give a DIR with its classes, or --class-map" if config.evaluate else "start from --weights instead"
        raise UserError(
            f"the checkpoint was trained on {count} classes, this run has {config.num_classes}: {remedy}", True
        )
    if list(saved) != list(classes) and not config.synthetic:
        name = next((name for name in [*saved, *classes] if name not in saved or name not in classes), saved[0])
        raise UserError(
            f"the folder's classes are not those of the checkpoint (class {name!r}): its labels would mean something else",
            True,
        )

"""A custom-scalars layout for TensorBoard that puts the arms' curves into one chart each."""

from __future__ import annotations

from pathlib import Path

CHARTS = {
    "loss": "train/loss",
    "images a second": "perf/images_per_sec_total",
    "data wait": "perf/data_wait_share",
    "memory, GiB": "perf/peak_memory_gib",
}


def write_layout(folder: Path) -> None:
    """One event file in ``folder``, above the runs; a second call replaces it. Nothing without tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    writer = SummaryWriter(str(folder))
    writer.add_custom_scalars({"comparison": {title: ["Multiline", [tag]] for title, tag in CHARTS.items()}})
    writer.close()

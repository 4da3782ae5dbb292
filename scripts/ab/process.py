"""One run of an arm: a fresh train.py process, and what its run folder tells of it."""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ab.settings import ROOT
from trainer.errors import EXIT_INTERRUPTED, RunError

# Starts train.py with these flags, its lines to a file; returns the exit code.
Start = Callable[[Sequence[str], Path], int]


def start_process(processes: int = 1) -> Start:
    """Runs train.py in a process of its own, under torchrun where it is to be more than one."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []

    def start(flags: Sequence[str], log: Path) -> int:
        with open(log, "wb") as stream:
            child = subprocess.Popen(
                [sys.executable, *launcher, str(ROOT / "train.py"), *flags], stdout=stream, stderr=subprocess.STDOUT
            )
            try:
                return child.wait()
            except KeyboardInterrupt:
                # From a terminal the child has had its own; from elsewhere it has not.
                child.send_signal(signal.SIGINT)
                try:
                    child.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
                return EXIT_INTERRUPTED

    return start


def run_once(start: Start, flags: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run and read; ``exit_code`` says whether the rest is there. Checkpoints are removed: nobody reads them."""
    if folder.exists():
        shutil.rmtree(folder)  # what an interrupted attempt left
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = log_of(folder)
    began = time.perf_counter()
    code = start([*flags, "--output-dir", str(folder)], log)
    seconds = time.perf_counter() - began
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    record: dict[str, Any] = {"exit_code": code, "wall_s": seconds, "log": str(log)}
    if code == 0:
        record.update(read_run(folder))
    return record


def log_of(folder: Path) -> Path:
    """What a run prints, beside its folder."""
    return folder.with_name(f"{folder.name}.log")


def read_run(folder: Path) -> dict[str, Any]:
    """Step times, losses, resolved settings and last epoch of a run folder. Raises RunError where they lack."""
    import yaml

    try:
        lines = (folder / "step_times.jsonl").read_text(encoding="utf-8").splitlines()
        epochs = [json.loads(line) for line in lines]
        resolved = yaml.safe_load((folder / "resolved.yaml").read_text(encoding="utf-8"))
        environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        final = [row for row in rows if row["kind"] == "epoch"]
        keys = ("train_loss", "val_loss", "val_acc1", "val_images")
        return {
            "epochs": epochs,
            "losses": epochs[0]["losses"],
            "skipped_steps": epochs[-1]["skipped_steps"],
            "peak_memory_gib": epochs[-1]["peak_memory_gib"],
            "ordered_dropout": epochs[0]["ordered_dropout"],
            "drawing_modules": epochs[0]["drawing_modules"],
            "final": {key: final[-1][key] for key in keys} if final else None,
            "resolved": resolved,
            "environment": environment,
        }
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise RunError(f"{folder} holds no readable step times: {error!r}") from error


def steady(run: dict[str, Any]) -> dict[str, list[float]]:
    """``seconds``, ``data_wait`` and ``images`` of a run's steps after each epoch's warm-up.

    A last batch that is smaller than the others would be a step of another kind: it is left out.
    """
    found: dict[str, list[float]] = {"seconds": [], "data_wait": [], "images": []}
    usual = max(image for epoch in run["epochs"] for image in epoch["images"])
    for epoch in run["epochs"]:
        for index in range(epoch["warmup_steps"], len(epoch["seconds"])):
            if epoch["images"][index] == usual:
                for key, values in found.items():
                    values.append(epoch[key][index])
    if not found["seconds"]:
        raise RunError("a run has no step after its warm-up: take fewer --timing-warmup-steps, or more images")
    return found


def median_step(run: dict[str, Any]) -> float:
    return statistics.median(steady(run)["seconds"])


def last_lines(path: str, count: int = 12) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
    except OSError:
        return []

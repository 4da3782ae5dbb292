"""One start of a training that is to be killed: the command, its processes, the images it was fed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

WORKER = Path(__file__).resolve().parent / "drill_worker.py"
LIMIT_S = 240.0


class Start:
    """One start in ``folder``, as a user types it there. ``number``: which start of the round it is."""

    def __init__(self, folder: Path, number: int, ranks: int, flags: Sequence[str]) -> None:
        self._record = folder / "fed" / f"start_{number:03d}"
        self._log = folder / "fed" / f"start_{number:03d}.log"
        self._record.parent.mkdir(parents=True, exist_ok=True)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        with open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [sys.executable, *launcher, str(WORKER), *flags],
                cwd=folder, env={**os.environ, "DRILL_RECORD": str(self._record)},
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def wait(self, seconds: float = LIMIT_S) -> int | None:
        """The exit code; None where it still runs after ``seconds``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def wait_until_fed(self) -> None:
        """Until its first batch, its end or ``LIMIT_S``."""
        end = time.monotonic() + LIMIT_S
        while not self.fed() and self._process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL to all processes: torchrun gives its workers groups of their own, so each is found by its parent.
        A stopped process starts no other, so none is missed."""
        found, waiting = [], [self._process.pid]
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                found.append(pid)
                waiting += _children(pid)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        while any(_lives(pid) for pid in found[1:]):
            time.sleep(0.01)

    def fed(self) -> list[tuple[int, list[str]]]:
        """Epoch and images of each step that began, over all ranks; a step that not every rank began counts too."""
        steps: list[tuple[int, list[str]]] = []
        for path in sorted(self._record.parent.glob(f"{self._record.name}.rank*.jsonl")):
            lines = path.read_text().split("\n")[:-1]  # what follows the last line end is half a line
            for index, line in enumerate(lines):
                epoch, *images = json.loads(line)
                if index == len(steps):
                    steps.append((epoch, []))
                steps[index][1].extend(images)
        return steps

    def log_tail(self) -> str:
        return self._log.read_text()[-2000:]


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    return []


def _lives(pid: int) -> bool:
    """False for a process that has ended and waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False

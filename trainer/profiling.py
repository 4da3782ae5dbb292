"""``--prof N``: steps N to N+9 under torch.profiler, a trace file, NVTX ranges on CUDA."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

PROFILED_STEPS = 10


class StepProfiler:
    """Watches the count of steps; inert when ``first`` is None."""

    def __init__(self, first: int | None, folder: Path | None, device: torch.device) -> None:
        self.first = first
        self._folder = folder
        self._cuda = device.type == "cuda"
        self._profiler: Any = None
        self.trace: Path | None = None  # where it lies, once written

    def before_step(self, step: int) -> None:
        """``step``: 0-based count of this start's steps."""
        if self.first is None or step != self.first:
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._cuda:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.cudart().cudaProfilerStart()  # what `nsys profile --capture-range=cudaProfilerApi` waits for
        self._profiler = torch.profiler.profile(activities=activities, record_shapes=True)
        self._profiler.__enter__()

    def after_step(self, step: int) -> bool:
        """True once the last profiled step is over and the trace is written."""
        if self.first is None or self._profiler is None or step < self.first + PROFILED_STEPS - 1:
            return False
        self.finish()
        return True

    def finish(self) -> None:
        """Write the trace of what was profiled, if anything was."""
        if self._profiler is None:
            return
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()
        self._profiler.__exit__(None, None, None)
        profiler, self._profiler = self._profiler, None
        if self._folder is not None:
            self.trace = self._folder / "trace.json"
            profiler.export_chrome_trace(str(self.trace))

    def range(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A named range in the trace, and on CUDA an NVTX one for nsys."""
        if self._profiler is None:
            return contextlib.nullcontext()
        stack = contextlib.ExitStack()
        stack.enter_context(torch.profiler.record_function(name))
        if self._cuda:
            stack.enter_context(torch.cuda.nvtx.range(name))
        return stack

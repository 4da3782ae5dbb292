"""Where an op stands: pass, module, source line. Forward ops by what runs, backward ops by the forward op they belong to.

What PyTorch keeps private is asked for in ``next_sequence_number`` and ``current_node`` alone; without it the module
and line of backward ops are unknown.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.module_tracker import ModuleTracker

FORWARD, BACKWARD, OPTIMIZER, OUTSIDE = "forward", "backward", "optimizer", "outside"
PASSES = (FORWARD, OUTSIDE, BACKWARD, OPTIMIZER)  # outside: no module runs, as in a functional loss
UNKNOWN = "unknown"
ACCUMULATION = "gradient accumulation"
_ENGINE = torch.autograd.graph.__file__  # every backward pass starts there
_NOT_THE_MODEL = (str(Path(torch.__file__).parent) + "/", str(Path(__file__).parent) + "/")


@dataclass(frozen=True)
class Where:
    """``line``: ``file:number`` of the first frame outside torch. ``of``: for a backward op, the op it is of."""

    pass_name: str
    module: str
    line: str = UNKNOWN
    of: str | None = None


def next_sequence_number() -> int | None:
    """The number that the next autograd node will get; one more than that of a node whose op runs now."""
    try:
        return torch.autograd._get_sequence_nr()
    except AttributeError:
        return None


def current_node() -> tuple[str, int] | None:
    """Name and sequence number of the autograd node that runs now."""
    try:
        node: Any = torch._C._current_autograd_node()
        return None if node is None else (node.name(), node._sequence_nr())
    except AttributeError:
        return None


class Locator:
    """Follows which module runs, by hooks on all modules, and remembers where the op of each autograd node stood.

    ``ModuleTracker`` tells forward from backward; its set of running modules has no order, so the innermost is
    not to be had from it, and it keeps what raised.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._names = {} if model is None else {id(module): name for name, module in model.named_modules()}
        self._running: list[str] = []
        self._in_optimizer = 0
        self._tracker = ModuleTracker()
        self._nodes: dict[int, tuple[str | None, Where]] = {}
        self._numbered = 0  # nodes below this number are known, or older than the audit

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        self._numbered = next_sequence_number() or 0
        with contextlib.ExitStack() as stack:
            for handle in (
                register_module_forward_pre_hook(self._enter),
                register_module_forward_hook(self._leave, always_call=True),
                register_optimizer_step_pre_hook(self._enter_optimizer),
                register_optimizer_step_post_hook(self._leave_optimizer),
            ):
                stack.callback(handle.remove)
            yield

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        name = self._names.get(id(module))
        self._running.append(name or type(module).__name__)

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._running:
            self._running.pop()

    def _enter_optimizer(self, *_: Any) -> None:
        self._in_optimizer += 1

    def _leave_optimizer(self, *_: Any) -> None:
        self._in_optimizer -= 1

    def now(self, op: str) -> Where:
        """Where the op stands that is dispatched now."""
        in_backward = self._tracker.is_bw
        if in_backward and not self._running:
            return self._in_backward(op)
        module = self._running[-1] if self._running else OUTSIDE
        if in_backward:  # activation checkpointing runs the forward pass again
            return Where(BACKWARD, module, source_line())
        if self._in_optimizer:
            return Where(OPTIMIZER, "optimizer", source_line())
        where = Where(FORWARD if self._running else OUTSIDE, module, source_line())
        number = next_sequence_number() or 0
        # A node is numbered before its op runs. More than one new number: an in-place op that copies its input first.
        for new in range(self._numbered, number):
            self._nodes[new] = (op if self._numbered + 1 == number else None, where)
        self._numbered = max(self._numbered, number)
        return where

    def _in_backward(self, op: str) -> Where:
        node = current_node()
        if node is None:
            return Where(BACKWARD, UNKNOWN)
        name, number = node
        if "AccumulateGrad" in name:
            return Where(BACKWARD, ACCUMULATION, of=ACCUMULATION)
        own = source_line(_ENGINE)  # a backward pass written in Python has lines of its own
        of, where = self._nodes.get(number, (None, Where(BACKWARD, UNKNOWN)))
        of = of or name
        # Gradients of a tensor with several uses are summed while the node that gave the last of them is current.
        # Python code that runs there is its own: it has a line, and no sum of gradients has one.
        summed = own == UNKNOWN and op.startswith("add") and not of.lower().startswith("add")
        line = where.line if own == UNKNOWN else own
        return replace(where, pass_name=BACKWARD, line=line, of=ACCUMULATION if summed else of)


def source_line(until: str | None = None) -> str:
    """``file:number`` of the first frame outside torch and this package, looked for up to a file named ``until``."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != until:
        if not frame.f_code.co_filename.startswith(_NOT_THE_MODEL):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return UNKNOWN

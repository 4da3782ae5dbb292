"""The mode under which an audit sees each aten op, and what it hands on of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.layout_audit.audit import LayoutAudit, Named
from trainer.layout_audit.records import LostOp, Operand, is_plain
from trainer.layout_audit.where import Locator


class _Watch(TorchDispatchMode):
    def __init__(self, audit: LayoutAudit, locator: Locator) -> None:
        super().__init__()
        self._audit = audit
        self._locator = locator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = str(func).removeprefix("aten.").removesuffix(".default")
        where = self._locator.now(name)
        inputs = named_tensors(func, args, kwargs)

        def record(pairs: Named) -> LostOp:
            asked = kwargs.get("memory_format")
            return LostOp(name, where, [Operand.of(*pair) for pair in pairs], [], memory_format=asked and str(asked))

        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            self._audit.refuse(record(inputs), error)
            raise
        outputs = [(f"out[{index}]", one) for index, one in enumerate(_flat(result)) if is_plain(one)]
        filled = _filled(func)
        for ins, outs in _pairs(name, args, inputs, outputs):
            op = record(ins)
            changed = [pair for pair in ins if pair[0].split("[")[0] in filled]
            op.outputs = [Operand.of(*pair) for pair in outs or changed]
            self._audit.look(op, ins, outs, changed)
        return result


def _pairs(name: str, args: Sequence[Any], inputs: Named, outputs: Named) -> Iterator[tuple[Named, Named]]:
    """Inputs and outputs that belong together: ``_foreach`` and ``_fused`` ops are many small ops in one.

    Where they cannot be told apart, the outputs are handed on alone, as new memory."""
    if not name.startswith(("_foreach", "_fused")):
        yield inputs, outputs
    elif args and isinstance(args[0], (list, tuple)) and len(args[0]) == len(outputs) == len(inputs):
        for pair, output in zip(inputs, outputs, strict=True):
            yield [pair], [output]
    else:
        yield [], outputs


def _filled(func: Any) -> set[str]:
    """Names of the arguments that an op writes into, as in-place ops and those with ``out=`` do."""
    schema = getattr(func, "_schema", None)
    arguments = schema.arguments if schema is not None else ()
    return {one.name for one in arguments if one.alias_info is not None and one.alias_info.is_write}


def named_tensors(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Named:
    """The tensors among an op's arguments, under the names that its schema gives them."""
    schema = getattr(func, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    found: Named = []
    for index, value in enumerate(args):
        name = names[index] if index < len(names) else str(index)
        found += _under(name, value)
    for name, value in kwargs.items():
        found += _under(name, value)
    return found


def _under(name: str, value: Any) -> Named:
    if is_plain(value):
        return [(name, value)]
    if isinstance(value, (list, tuple)):
        return [(f"{name}[{index}]", one) for index, one in enumerate(value) if is_plain(one)]
    return []


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    else:
        yield value


@contextlib.contextmanager
def audit_layout(
    model: nn.Module | None = None, on_loss: Literal["record", "raise"] = "record"
) -> Iterator[LayoutAudit]:
    """Watch every op of this thread and of its backward passes for channels-last that gets lost.

    ``model``: whose modules to name by their path; others appear under their class. ``on_loss="raise"``: a
    ``LayoutLost`` at the first loss. PyTorch is left as it was, also after an exception. Compiled code falls back to
    eager under a dispatch mode, so what ``torch.compile`` does with strides is not seen here.
    """
    if on_loss not in ("record", "raise"):
        raise ValueError(f"on_loss is 'record' or 'raise', not {on_loss!r}")
    audit, locator = LayoutAudit(on_loss, () if model is None else model.parameters()), Locator(model)
    with locator.watching(), _Watch(audit, locator):
        try:
            yield audit
        except BaseException as error:
            audit.finish(error)
            raise
        audit.finish()

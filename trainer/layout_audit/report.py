"""An audit as one line, as a table, as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.layout_audit.advice import ADVICE
from trainer.layout_audit.records import Counts, LostOp
from trainer.layout_audit.step import Findings
from trainer.layout_audit.where import PASSES

_SITE = Path(torch.__file__).parent.parent  # where packages lie


@dataclass
class Row:
    """Losses of one op at one place. ``bytes`` were written in the wrong order, over ``times`` calls."""

    module: str
    pass_name: str
    op: str
    line: str
    kind: str
    foreign: str
    restored_by: str
    times: int = 0
    bytes: int = 0


def rows_of(lost: Iterable[LostOp]) -> list[Row]:
    """By place, most bytes first."""
    rows: dict[tuple[str, ...], Row] = {}
    for one in lost:
        where, op = one.where, one.op if one.where.of is None else f"{one.op} (of {one.where.of})"
        key = (where.module, where.pass_name, op, short(where.line), one.kind)
        row = rows.setdefault(key, Row(*key, ", ".join(one.foreign) or "none", one.restored_by or "nothing"))
        row.times += 1
        row.bytes += one.lost_bytes
    return sorted(rows.values(), key=lambda row: -row.bytes)


def short(line: str) -> str:
    """A source line's path as people write it: below site-packages or the present folder."""
    for root in (_SITE, Path.cwd()):
        if line.startswith(f"{root}/"):
            return line[len(str(root)) + 1 :]
    return line


def summary_line(findings: Findings) -> str:
    """``0 of 279 ops lose channels-last (forward 0 of 107, backward 0 of 172)``, and what else is wrong."""
    audit = findings.audit
    judged = {name: audit.counts[name] for name in PASSES if _judged(audit.counts[name])}
    passes = ", ".join(f"{name} {counts.lost} of {_judged(counts)}" for name, counts in judged.items())
    line = f"{len(audit.lost)} of {sum(map(_judged, judged.values()))} ops lose channels-last"
    line += f" ({passes})" if passes else ": none had a channels-last input"
    if audit.lost:
        worst = rows_of(audit.lost)[0]
        line += f", {audit.lost_bytes / 2**20:.2f} MiB, most in {worst.module}: {worst.op}"
    for refused in audit.refused:
        line += f"; {refused.op} in {refused.where.module} ({short(refused.where.line)}) refuses channels-last"
    if findings.state:
        first = findings.state[0]
        line += f"; {len(findings.state)} parameters, gradients or optimizer states in another order ({first.what} of {first.name})"
    if findings.differences:
        line += (
            f"; torch.compile changes the order of {len(findings.differences)} tensors ({findings.differences[0][0]})"
        )
    return line


def _judged(counts: Counts) -> int:
    return counts.kept + counts.lost


def table(findings: Findings) -> list[str]:
    """Lines: the losses by module, worst first, then what to do about each kind; empty where nothing is lost."""
    head = ("MiB", "times", "module", "pass", "op", "foreign operand", "restored by", "line", "kind")
    rows = [
        (f"{row.bytes / 2**20:.2f}", str(row.times), row.module, row.pass_name, row.op, row.foreign, row.restored_by, row.line, row.kind)
        for row in rows_of(findings.audit.lost)
    ]  # fmt: skip
    lines = _aligned([head, *rows]) if rows else []
    for refused in findings.audit.refused:
        lines.append(
            f"{refused.op} in {refused.where.module} ({short(refused.where.line)}) stopped the pass: {refused.error}"
        )
    for tensor in findings.state:
        lines.append(f"{tensor.what} of {tensor.name} {tensor.shape} strides {tensor.stride}: {tensor.found}")
    for name, eager, compiled in findings.differences:
        lines.append(f"{name}: strides {eager} in eager, {compiled} compiled")
    kinds = {one.kind for one in (*findings.audit.lost, *findings.audit.refused)}
    return lines + [f"{kind}: {text}" for kind, text in ADVICE.items() if kind in kinds]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def to_json(findings: Findings, facts: dict[str, Any]) -> dict[str, Any]:
    """All that is known, as plain values; ``facts``: what was audited and on what."""
    audit = findings.audit
    kinds = {one.kind for one in (*audit.lost, *audit.refused)}
    return {
        **facts,
        "summary": summary_line(findings),
        "clean": findings.clean,
        "counts": {name: asdict(counts) for name, counts in audit.counts.items()},
        "lost_bytes": audit.lost_bytes,
        "by_module": [asdict(row) for row in rows_of(audit.lost)],
        "lost": [one.to_json() for one in audit.lost],
        "refused": [one.to_json() for one in audit.refused],
        "state": [asdict(tensor) for tensor in findings.state],
        "compile_differences": [
            {"tensor": name, "eager": eager, "compiled": compiled} for name, eager, compiled in findings.differences
        ],
        "advice": {kind: ADVICE[kind] for kind in ADVICE if kind in kinds},
    }

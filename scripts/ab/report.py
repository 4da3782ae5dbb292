"""report.md and report.html: verdicts first, then a table, pictures, and what ran where."""

from __future__ import annotations

import base64
import html
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ab.finals import NAMES
from ab.process import steady
from ab.tally import few_steps, told_steps
from ab.verdict import UNSTABLE, WIDE, Verdict, data_wait, done_by_arm, round_of

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2024; max-width: 54rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .3rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
.verdict { border-left: 6px solid #8a8f98; background: #f4f5f7; padding: .7rem 1rem; margin: .7rem 0; font-size: 1.08rem; }
.faster { border-color: #1a7f4b; } .slower, .different { border-color: #b3261e; } .unstable, .input-bound { border-color: #c77700; }
.results, .quiet { color: #5b626b; font-size: .92rem; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: right; padding: .35rem .7rem; border-bottom: 1px solid #dfe2e6; }
th:first-child, td:first-child { text-align: left; } figure { margin: 1.6rem 0; } figcaption { color: #5b626b; font-size: .92rem; }
img { width: 100%; height: auto; } code { overflow-wrap: anywhere; background: #f4f5f7; } pre { white-space: pre-wrap; background: #f4f5f7; padding: .7rem; }
"""
_HEADER = ("arm", "images/s", "step, ms", "ratio", "95 % interval", "data wait", "memory, GiB", "rounds")


def write_reports(
    content: Mapping[str, Any], verdicts: Sequence[Verdict], pictures: Sequence[tuple[str, Path]], folder: Path
) -> Path:
    """Both files; returns the path of report.html, which needs nothing beside it."""
    (folder / "report.md").write_text(_markdown(content, verdicts, pictures), encoding="utf-8")
    path = folder / "report.html"
    path.write_text(_html(content, verdicts, pictures), encoding="utf-8")
    return path


def table(content: Mapping[str, Any], verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """A row an arm, as text; medians over rounds."""
    judged = {verdict.arm: verdict.ratio for verdict in verdicts}
    rows = []
    for name, found in done_by_arm(content).items():
        if not found:
            rows.append((name, *["-"] * 6, "0"))
            continue
        runs = list(found.values())
        rate = statistics.median(round_of(run).rate for run in runs)
        step = statistics.median(second for run in runs for second in steady(run)["seconds"])
        memory = statistics.median(run["peak_memory_gib"] for run in runs)
        ratio, interval = ("1", "baseline") if name == content["arms"][0]["name"] else ("-", "-")
        if name in judged:
            ratio = f"{judged[name].value:.3f}"
            interval = f"{judged[name].low:.3f} to {judged[name].high:.3f}" if len(judged[name].by_round) > 1 else "-"
        rows.append((name, f"{rate:.2f}", f"{1000 * step:.1f}", ratio, interval, f"{100 * data_wait(runs):.1f} %",
                     f"{memory:.2f}", str(len(runs))))  # fmt: skip
    return rows


def final_lines(content: Mapping[str, Any]) -> list[str]:
    """Loss and accuracy at the end, where whole epochs were trained."""
    lines = []
    for name, found in done_by_arm(content).items():
        finals = [run["final"] for run in found.values() if run.get("final")]
        if finals:
            values = ", ".join(_told_final(key, [final[key] for final in finals]) for key in NAMES)
            lines.append(f"{name}: {values} (median over {len(finals)} rounds)")
    return lines


def _told_final(key: str, values: Sequence[float | None]) -> str:
    finite = [value for value in values if value is not None]
    if not finite:
        return f"{key} not finite"
    missing = len(values) - len(finite)
    suffix = f" (not finite in {missing} of {len(values)} rounds)" if missing else ""
    return f"{key} {statistics.median(finite):.4f}{suffix}"


def facts(content: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What ran, and where."""
    environment = content["environment"] or {}
    machine = [str(environment[key]) for key in ("gpu", "cpu") if environment.get(key)]
    found = [
        ("state", content["state"]),
        ("machine", f"{', '.join(machine)}; {environment.get('cores')} cores, {environment.get('threads')} threads"),
        ("versions", f"torch {environment.get('torch')}, Python {environment.get('python')}, revision {environment.get('git_revision')}"),
        ("flags of all arms", shlex.join(content["common"])),
        *((f"arm {arm['name']}", shlex.join(arm["flags"]) or "no flags of its own") for arm in content["arms"]),
        ("method", f"{told_steps(content)}; median step of a round, ratio round by "
                   "round, geometric mean, 95 % t interval with a bootstrap standard error over rounds and steps; unstable where "
                   f"the ratio's standard deviation over rounds is above {100 * UNSTABLE:.0f} %, or where the interval holds 1 and "
                   f"reaches further than {100 * WIDE:.0f} %"),
    ]  # fmt: skip
    if content.get("cpu_heap"):
        found.insert(3, ("CPU heap", f"{content['cpu_heap']}, the same for all arms"))
    note = few_steps(content)
    if note:
        found.insert(0, ("note", note))
    return found


def label(content: Mapping[str, Any]) -> str:
    """What a reader has to know of a comparison in one process; empty for one of fresh processes."""
    if not content["settings"].get("in_process"):
        return ""
    return "In one process: a quick look. The arms share heap and caches, and one figure of memory; the loader is in no time."


def _markdown(content: Mapping[str, Any], verdicts: Sequence[Verdict], pictures: Sequence[tuple[str, Path]]) -> str:
    lines = [f"# {_title(content)}", "", *([f"*{label(content)}*", ""] if label(content) else [])]
    for verdict in verdicts:
        lines += [f"- **{verdict.sentence}**", f"  - results: {verdict.results.text}"]
    lines += ["- nothing to judge yet"] if not verdicts else []
    if content.get("failure"):
        failure = content["failure"]
        lines += ["", f"Arm {failure['arm']} ended with exit code {failure['exit_code']}:", ""]
        lines += [f"    {line}" for line in failure["last_lines"]]
    lines += ["", "| " + " | ".join(_HEADER) + " |", "|" + "---|" * len(_HEADER)]
    lines += ["| " + " | ".join(row) + " |" for row in table(content, verdicts)]
    lines += ["", *[f"- {line}" for line in final_lines(content)], ""]
    for caption, path in pictures:
        lines += [f"![{caption}]({path.name})", ""]
    lines += [f"- {name}: {text}" for name, text in facts(content)]
    return "\n".join(lines) + "\n"


def _html(content: Mapping[str, Any], verdicts: Sequence[Verdict], pictures: Sequence[tuple[str, Path]]) -> str:
    escape = html.escape
    parts = [f"<h1>{escape(_title(content))}</h1>"]
    parts += [f'<p class="quiet">{escape(label(content))}</p>'] if label(content) else []
    for verdict in verdicts:
        kind = verdict.kind.split()[0]
        parts.append(
            f'<div class="verdict {kind}">{escape(verdict.sentence)}<div class="results">Results: {escape(verdict.results.text)}</div></div>'
        )
    if not verdicts:
        parts.append('<div class="verdict">Nothing to judge yet: no round has ended.</div>')
    if content.get("failure"):
        failure = content["failure"]
        tail = escape("\n".join(failure["last_lines"]))
        parts.append(
            f"<h2>Arm {escape(failure['arm'])} ended with exit code {failure['exit_code']}</h2><pre>{tail}</pre>"
        )
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table(content, verdicts)
    )
    parts.append("<table><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in _HEADER) + f"</tr>{rows}</table>")
    parts += [f"<p>{escape(line)}</p>" for line in final_lines(content)]
    for caption, path in pictures:
        data = base64.b64encode(path.read_bytes()).decode("ascii")
        parts.append(
            f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}"><figcaption>{escape(caption)}</figcaption></figure>'
        )
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td style='text-align:left'><code>{escape(text)}</code></td></tr>"
        for name, text in facts(content)
    )
    parts.append(f"<h2>What ran</h2><table>{rows}</table>")
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(_title(content))}</title><style>{_STYLE}</style></head>'
    return f"{head}<body>{''.join(parts)}</body></html>\n"


def _title(content: Mapping[str, Any]) -> str:
    return content["title"] or " against ".join(arm["name"] for arm in reversed(content["arms"]))

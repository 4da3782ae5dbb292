"""One table out of the folder that scripts/gpu_check.sh filled; exit code 1 where a part failed.

Reads OUT/<part>/part.json (exit code, seconds), a NAME.log and NAME.code a command, NAME.not_run for what could not be
done, and the result files beside them. Prints a Markdown table, and writes it to OUT/table.md and OUT/table.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import common
from runs import read_summary

from trainer.errors import RunError

OK, FAILED, NOT_RUN = "ok", "failed", "not run"
FORMATS = ("channels_last", "contiguous_format")
FLOOR = 1.31  # channels-last over contiguous that PyTorch's tutorial reports for this model and level


@dataclass(frozen=True)
class Row:
    part: str
    what: str
    result: str
    status: str = OK


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"no readable {path.name}") from error


def last_line(log: Path) -> str:
    """What a log says went wrong: our own last line of an error, else its last line that is more than a rule."""
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return "it left no log"
    lines = [line for line in lines if line.strip("=-")]
    own = [line for line in lines if line.startswith("error: ")]
    return (own or lines or ["it wrote nothing"])[-1][:160]


def summaries(folder: Path, pattern: str) -> dict[str, dict[str, float]]:
    """The last epoch of each run that ended well, by the run's name."""
    names = sorted(path.stem for path in folder.glob(f"{pattern}.code") if path.read_text().strip() == "0")
    return {name: read_summary(folder / name) for name in names}


def ratio_row(part: str, what: str, pairs: Sequence[tuple[float, float]], note: str = "") -> Row:
    ratios = [one / other for one, other in pairs]
    each = f" ({', '.join(f'{ratio:.3f}' for ratio in ratios)})" if len(ratios) > 1 else ""
    return Row(part, what, f"{statistics.geometric_mean(ratios):.3f}{each}{note}")


def speeds(values: Sequence[float]) -> str:
    each = f" ({', '.join(f'{value:.1f}' for value in values)})" if len(values) > 1 else ""
    return f"{statistics.geometric_mean(values):.1f} img/s{each}"


def collect_tests(folder: Path) -> Iterator[Row]:
    if not (folder / "pytest.xml").is_file():
        return
    suite = next(iter(ElementTree.parse(folder / "pytest.xml").getroot().iter("testsuite")))
    total, skipped, *bad = (int(suite.get(key, "0")) for key in ("tests", "skipped", "failures", "errors"))
    passed = total - skipped - sum(bad)
    yield Row(
        "tests",
        "pytest -m gpu",
        f"{passed} passed, {sum(bad)} failed, {skipped} skipped",
        FAILED if sum(bad) or not passed else OK,
    )


def collect_torchrun(folder: Path) -> Iterator[Row]:
    for name, found in summaries(folder, "*").items():
        yield Row(
            "torchrun", name, f"training loss {found['train_loss']:.3f}, {found['images_per_sec_total']:.1f} img/s"
        )


def collect_sync_bn(folder: Path) -> Iterator[Row]:
    for check in read_json(folder / "parity.json"):
        yield Row("sync_bn", check["name"], check["detail"], check["status"])


def collect_resume(folder: Path) -> Iterator[Row]:
    code = folder / "compare.code"
    if code.is_file() and code.read_text().strip() == "0":
        yield Row("resume", "two halves against a straight run", last_line(folder / "compare.log"))


def collect_formats(folder: Path) -> Iterator[Row]:
    rounds = {name: summaries(folder, f"{name}-*") for name in FORMATS}
    for name, found in rounds.items():
        if found:
            peak = max(run["peak_memory_gib"] for run in found.values())
            values = [run["images_per_sec_total"] for run in found.values()]
            yield Row("formats", f"O2 {name}", f"{speeds(values)}, peak {peak:.2f} GiB")
    # A round counts where both of its runs ended well.
    both = [n for n in range(1, 100) if all(f"{name}-{n}" in rounds[name] for name in FORMATS)]
    pairs = [tuple(rounds[name][f"{name}-{n}"]["images_per_sec_total"] for name in FORMATS) for n in both]
    if pairs:
        yield ratio_row("formats", " / ".join(FORMATS), pairs, f"; PyTorch's tutorial: {FLOOR}")  # type: ignore[arg-type]


def collect_levels(folder: Path) -> Iterator[Row]:
    for name, found in summaries(folder, "*").items():
        what = "O1 bfloat16" if name == "bfloat16" else name
        speed, peak = found["images_per_sec_total"], found["peak_memory_gib"]
        yield Row("levels", f"{what} channels_last", f"{speed:.1f} img/s, peak {peak:.2f} GiB")


def collect_bench(folder: Path) -> Iterator[Row]:
    content = read_json(folder / f"{folder.name}.json")
    for found in content["comparisons"]:
        names = f"{found['candidate']} / {found['baseline']}"
        medians = " against ".join(f"{found['medians'][found[arm]]:.1f}" for arm in ("candidate", "baseline"))
        yield Row(folder.name, f"{found['title']}: {names}", f"{found['ratio']:.3f}, {medians} {found['unit']}")
    for product, share in content.get("share_of_limit", {}).get("ours", {}).items():
        rate = content["product_flops_per_s"][product]
        teraflops = statistics.median(rate) / 1e12
        yield Row(folder.name, f"share of the {product}", f"{100 * share:.1f} % of {teraflops:.3g} TFLOP/s")


def collect_jpeg(folder: Path) -> Iterator[Row]:
    setting = read_json(folder / "setting.json") if (folder / "setting.json").is_file() else {"workers": "?"}
    ours = summaries(folder, "ours-*")
    peers = {path.stem: read_json(path)["images_per_sec"] for path in sorted(folder.glob("peer-*.json"))}
    if ours:
        wait = 100 * statistics.median(run["data_wait_share"] for run in ours.values())
        values = [run["images_per_sec_total"] for run in ours.values()]
        yield Row("jpeg", f"train.py, {setting['workers']} workers", f"{speeds(values)}, data wait {wait:.0f} %")
    if peers:
        yield Row("jpeg", f"main_amp-style loop, {setting['workers']} workers", speeds(list(peers.values())))
    both = [n for n in range(1, 100) if f"ours-{n}" in ours and f"peer-{n}" in peers]
    if both:
        pairs = [(ours[f"ours-{n}"]["images_per_sec_total"], peers[f"peer-{n}"]) for n in both]
        yield ratio_row("jpeg", "train.py / main_amp-style loop", pairs)


COLLECTORS: dict[str, Callable[[Path], Iterator[Row]]] = {
    "tests": collect_tests,
    "torchrun": collect_torchrun,
    "sync_bn": collect_sync_bn,
    "resume": collect_resume,
    "formats": collect_formats,
    "levels": collect_levels,
    "bench_step": collect_bench,
    "bench_feed": collect_bench,
    "jpeg": collect_jpeg,
}


def part_rows(folder: Path) -> list[Row]:
    """The rows of one part: what it measured, then what it could not do, then what went wrong."""
    part = folder.name
    try:
        ended = read_json(folder / "part.json")
    except RunError:
        return [Row(part, "the whole part", "it was never started", FAILED)]
    if not ended["limit_s"]:
        return [Row(part, "the whole part", "no time was left for it", FAILED)]
    rows: list[Row] = []
    wrong: list[Row] = []
    for log in sorted(folder.glob("*.log")):
        code = log.with_suffix(".code")
        if not code.is_file():
            wrong.append(
                Row(part, log.stem, f"stopped after {ended['seconds']} s of the part: {last_line(log)}", FAILED)
            )
        elif code.read_text().strip() != "0":
            wrong.append(Row(part, log.stem, f"exit code {code.read_text().strip()}: {last_line(log)}", FAILED))
    try:
        rows += COLLECTORS[part](folder)
    except (RunError, KeyError, ValueError, ElementTree.ParseError) as error:
        if not wrong:
            wrong.append(Row(part, "its results", f"cannot be read: {error}", FAILED))
    rows += [Row(part, path.stem, path.read_text().strip(), NOT_RUN) for path in sorted(folder.glob("*.not_run"))]
    if ended["code"] and not wrong and not any(row.status == FAILED for row in rows):
        wrong.append(Row(part, "the whole part", f"exit code {ended['code']}", FAILED))
    return rows + wrong or [Row(part, "the whole part", "it left no result", FAILED)]


def table(rows: Sequence[Row]) -> str:
    cells = [("part", "what", "result", "status")]
    cells += [(row.part, row.what, row.result.replace("|", "/"), row.status) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def heading(machine: dict[str, Any]) -> str:
    named = [f"{machine['gpus']} x {machine['gpu']}" if machine.get("gpu") else "no GPU", str(machine.get("cpu"))]
    named += [f"{machine.get('cores')} cores"]
    named += [f"{key} {machine[key]}" for key in ("torch", "cuda", "cudnn") if machine.get(key)]
    return ", ".join(named)


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("gpu_table", lambda: collect(argv))


def collect(argv: Sequence[str] | None) -> int:
    parser = common.Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument(
        "--parts", nargs="+", choices=tuple(COLLECTORS), default=list(COLLECTORS), help="rows wanted (all)"
    )
    args = parser.parse_args(argv)
    rows = [row for part in args.parts for row in part_rows(args.out / part)]
    text = heading(read_json(args.out / "machine.json")) + "\n\n" + table(rows)
    (args.out / "table.md").write_text(text + "\n", encoding="utf-8")
    (args.out / "table.json").write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n", encoding="utf-8")
    print(text)
    return 1 if any(row.status == FAILED for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

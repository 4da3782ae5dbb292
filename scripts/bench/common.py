"""What the benchmarks share: interleaved rounds, medians and ratios, the report, ``--require``, the machine.

All values are speeds, larger is better, one a round. Importing this module puts the repository on ``sys.path``, so
that a benchmark runs from any folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from trainer.errors import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_OK, RunError, UserError  # noqa: E402
from trainer.one_line import one_line  # noqa: E402
from trainer.streams import keep_printing  # noqa: E402

Arms = Mapping[str, Callable[[], float]]


@dataclass(frozen=True)
class Comparison:
    """Two arms of one measurement. ``values``: a speed a round, in ``unit``; ``required``: ``--require`` holds for it."""

    title: str
    candidate: str
    baseline: str
    unit: str
    values: Mapping[str, Sequence[float]]
    required: bool = True

    @property
    def name(self) -> str:
        return f"{self.candidate} / {self.baseline}"

    @property
    def ratios(self) -> list[float]:
        """One a round: both arms of a round met the same state of the machine."""
        pairs = zip(self.values[self.candidate], self.values[self.baseline], strict=True)
        return [candidate / baseline for candidate, baseline in pairs]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def spread(self) -> tuple[float, float]:
        """Between these lies the middle half of the ratios."""
        return middle_half(self.ratios)

    def lines(self) -> list[str]:
        arms = (self.candidate, self.baseline)
        width = max(map(len, (self.name, *arms)))
        lines = [self.title] if self.title else []
        for arm in arms:
            low, high = middle_half(self.values[arm])
            median = statistics.median(self.values[arm])
            lines.append(f"  {arm:<{width}}  {median:10.2f} {self.unit}  ({low:.2f} to {high:.2f})")
        low, high = self.spread
        rounds = f"{len(self.ratios)} round{'s' if len(self.ratios) > 1 else ''}"
        lines.append(f"  {self.name:<{width}}  {self.ratio:10.3f}  ({low:.3f} to {high:.3f}, {rounds})")
        return lines

    def record(self) -> dict[str, Any]:
        """Plain types for the JSON file."""
        low, high = self.spread
        return {
            "title": self.title,
            "candidate": self.candidate,
            "baseline": self.baseline,
            "unit": self.unit,
            "values": {arm: list(self.values[arm]) for arm in (self.candidate, self.baseline)},
            "medians": {arm: statistics.median(self.values[arm]) for arm in (self.candidate, self.baseline)},
            "ratio": self.ratio,
            "ratios": self.ratios,
            "ratio_middle_half": [low, high],
            "ratio_range": [min(self.ratios), max(self.ratios)],
            "required": self.required,
        }


def middle_half(values: Sequence[float]) -> tuple[float, float]:
    """Lower and upper quartile; the value itself where there is but one."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def interleave(arms: Arms, rounds: int, warmup_rounds: int, quiet: bool = False) -> dict[str, list[float]]:
    """Call every arm once a round; the values of each, those of the warm-up rounds left out.

    Every other round runs backwards (AB BA AB): a machine that grows slower then favours neither arm.
    """
    values: dict[str, list[float]] = {name: [] for name in arms}
    for index in range(rounds + warmup_rounds):
        names = list(arms) if index % 2 == 0 else list(arms)[::-1]
        found = {name: arms[name]() for name in names}
        counted = index >= warmup_rounds
        label = f"round {index - warmup_rounds + 1}/{rounds}" if counted else "warm-up round"
        if not quiet:
            note(f"{label}: " + ", ".join(f"{name} {found[name]:.4g}" for name in arms))
        for name in arms if counted else ():
            values[name].append(found[name])
    return values


def note(line: str) -> None:
    """Progress; on stderr, so that stdout holds the result alone."""
    print(line, file=sys.stderr, flush=True)


class Parser(argparse.ArgumentParser):
    """A mistyped option ends as one sentence, exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (--help lists the options)")


def build_parser(doc: str | None, rounds: int, warmup_rounds: int, require: bool = True) -> Parser:
    """A parser with the options every benchmark has; ``doc``: the benchmark's docstring.

    ``require``: whether there is a ratio to ask ``--require`` of.
    """
    parser = Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument_group("measurement").add_argument
    add("--rounds", type=at_least(1), default=rounds, metavar="N", help=f"counted rounds of all arms ({rounds})")
    add(
        "--warmup-rounds",
        type=at_least(0),
        default=warmup_rounds,
        metavar="N",
        help=f"rounds before them that are thrown away ({warmup_rounds})",
    )
    if require:
        add("--require", type=float, metavar="RATIO", help="exit 1 when a measured ratio is below this")
    parser.set_defaults(require=None)
    add("--json", type=Path, metavar="FILE", help="result file (runs/bench/<benchmark>-<date-time>.json)")
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """An argparse type: a whole number from ``least`` on."""

    def convert(text: str) -> int:
        if not text.lstrip("-").isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"takes a whole number from {least} on, got {text!r}")
        return int(text)

    return convert


def finish(
    benchmark: str,
    args: argparse.Namespace,
    comparisons: Sequence[Comparison],
    facts: Mapping[str, Any],
    lines: Sequence[str] = (),
) -> int:
    """Print the comparisons and the ``lines`` after them, and write the JSON file with the ``facts`` in it.

    Returns the exit code: 1 where a ratio is below ``--require``.
    """
    report = [line for comparison in comparisons for line in comparison.lines()]
    print("\n".join([*report, *lines]), flush=True)
    from machine import describe_machine

    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    content = {
        "benchmark": benchmark,
        "settings": settings,
        "comparisons": [comparison.record() for comparison in comparisons],
        **facts,
        "machine": describe_machine(),
    }
    path: Path = args.json or Path("runs", "bench", f"{benchmark}-{time.strftime('%Y%m%d-%H%M%S')}.json")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error}): give another --json") from error
    print(f"written: {path}", flush=True)
    return check_required(benchmark, comparisons, args.require)


def check_required(benchmark: str, comparisons: Sequence[Comparison], required: float | None) -> int:
    """1 and one line on stderr where a ratio is below ``required`` (NaN is), else 0."""
    below = [c for c in comparisons if c.required and required is not None and not c.ratio >= required]
    if not below:
        return EXIT_OK
    named = "; ".join(
        f"{c.title}: {c.name} is {c.ratio:.3f}" if c.title else f"{c.name} is {c.ratio:.3f}" for c in below
    )
    print(f"{benchmark}: below the required {required:g}: {named}", file=sys.stderr, flush=True)
    return EXIT_ERROR


@contextlib.contextmanager
def refused_batch_named(arch: str, shape: Sequence[int]) -> Iterator[None]:
    """What a model of a library says of a batch that it does not take, as one sentence; errors in the user's own model
    keep their traceback. Raises UserError."""
    import torch  # --help does without

    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except (AssertionError, RuntimeError, ValueError) as error:
        if ":" in arch.removeprefix("timm:"):
            raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"-a {arch} cannot take a batch of {tuple(shape)}: {reason}; give it another size or batch"
        ) from error


def run_to_exit_code(benchmark: str, body: Callable[[], int]) -> int:
    """Run ``body``; a RunError (2 for the user's mistake) ends as one line on stderr."""
    keep_printing()
    try:
        return body()
    except RunError as error:
        print(f"{benchmark}: {one_line(str(error))}", file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"{benchmark}: interrupted", file=sys.stderr, flush=True)
        return EXIT_INTERRUPTED

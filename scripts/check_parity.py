#!/usr/bin/env python3
"""Does a model compute the same in channels-last as in contiguous memory format? Exit code 3 where it does not.

One training step and one in evaluation mode (batch norm with its running statistics), from the same weights, batch and
random numbers in both formats, is compared layer by layer: each layer of the second arm is given the first arm's
values, so that rounding does not add up over the depth. Compared are every layer's input, output and output gradient,
every parameter's gradient and every buffer, by relative L2: |a - b| / |b|, with at least a thousandth of the whole
gradient's norm for |b|, since a gradient that is mathematically zero is all rounding (a bias before batch norm). Then
the evaluation logits of all four model/batch format pairs. Tolerance: 1e-4 in float32, 2e-2 where one arm is half.

The same is done with a small model of odd widths on 1 and 3 channels, and SyncBN is held against batch norm (CUDA).

A batch norm that sees few values a channel (a small batch at 1x1 pixels) magnifies rounding; which do is said. Take a
larger batch or image there.

exit codes: 0 equal within tolerance, 1 error, 2 your mistake, 3 different results
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (ROOT, ROOT / "scripts" / "bench", ROOT / "scripts" / "parity")
sys.path[:0] = [str(path) for path in FOLDERS if str(path) not in sys.path]

import sync_bn_parity  # noqa: E402
import torch  # noqa: E402
from common import Parser, at_least, run_to_exit_code  # noqa: E402
from parity_cases import Arm, Case, Check, compare_format_pairs, compare_steps, make_case  # noqa: E402
from parity_models import FEW_VALUES, OddWidths, thin_norms, with_in_channels  # noqa: E402

from trainer.checks import AMP_DTYPES, DEVICES, OPT_LEVELS  # noqa: E402
from trainer.environment import resolve_device, seed_everything, set_backends  # noqa: E402
from trainer.errors import UserError  # noqa: E402
from trainer.models import build_model  # noqa: E402

EXIT_DIFFERENT = 3
ODD_SHAPE = (8, 33, 29)  # images, height, width


def make_cases(args: argparse.Namespace, device: torch.device) -> Iterator[Case]:
    """The asked architecture, then the model of odd widths on 1 and 3 channels."""
    seed_everything(0)
    model = with_in_channels(build_model(args.arch, args.num_classes), args.in_channels)
    shape = (args.batch_size, args.in_channels, args.image_size, args.image_size)
    yield make_case(args.arch, model, shape, args.num_classes, device)
    images, height, width = ODD_SHAPE
    for channels in (1, 3):
        seed_everything(0)
        shape = (images, channels, height, width)
        yield make_case(
            f"odd widths, {channels} channel{'s' * (channels > 1)}", OddWidths(channels, 5), shape, 5, device
        )


def checks_of(case: Case, args: argparse.Namespace, dtype: str) -> Iterator[Check]:
    for training in (True, False):
        arms = [Arm(args.opt_level, dtype, channels_last) for channels_last in (False, True)]
        yield compare_steps(case, arms[0], arms[1], training)
        if args.against and args.against != args.opt_level:
            # The coarser arm is recorded: the finer one can be given its rounded values, not the other way round.
            levels = sorted((args.opt_level, args.against), reverse=True)
            coarse, fine = (Arm(level, dtype, True) for level in levels)
            yield compare_steps(case, coarse, fine, training)
    yield compare_format_pairs(case, Arm(args.opt_level, dtype, True))


def show(check: Check, rows: int) -> None:
    worst = check.ranked()[0].value if check.differences else float("inf")
    word = "ok" if check.passed else "DIFFERENT"
    print(f"{check.name}: {word}, worst {worst:.1e}, tolerance {check.tolerance:.1e}")
    if check.error:
        print(f"    {check.error}")
    gradients = [found for found in check.ranked() if found.what == "gradient"][:rows]
    others = [found for found in check.failed if found.what != "gradient"][:rows]
    for found in [*gradients, *others]:
        mark = "" if found.value <= check.tolerance else "  <--"
        print(f"    {found.value:9.1e}  {found.what:<15}  {found.name}{mark}")
    if check.facts:
        apart = ", ".join(f"{name} {value:.1e} apart" for name, value in check.facts.items())
        print(f"    two free steps, not judged since rounding grows with depth: {apart}")


def verdict(checks: Sequence[Check], sync_bn: Sequence[dict[str, Any]]) -> tuple[str, int]:
    """One line, and the exit code."""
    wrong = [check for check in checks if not check.passed]
    failed = [check["name"] for check in sync_bn if check["status"] == "failed"]
    skipped = sum(check["status"] == "not run" for check in sync_bn)
    more = f"; {skipped} SyncBN checks not run" if skipped else ""
    if not wrong and not failed:
        return f"equal within tolerance: all {len(checks) + len(sync_bn) - skipped} checks{more}", 0
    first = [f"SyncBN, {failed[0]}"] if failed else []
    if wrong:
        found = wrong[0].failed
        where = [f"{found[0].what} of {found[0].name}"] if found else [wrong[0].error or ""]
        gradients = [one for one in wrong[0].ranked() if one.what == "gradient" and one in found]
        where += [f"gradient of {gradients[0].name} {gradients[0].value:.1e} apart"] if gradients else []
        first.insert(0, f"{wrong[0].name}: first {', worst '.join(where)}")
    count = len(wrong) + len(failed)
    return (
        f"different results in {count} of {len(checks) + len(sync_bn) - skipped} checks: {'; '.join(first)}{more}",
        EXIT_DIFFERENT,
    )


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("-a", "--arch", default="resnet18", help="any --arch of train.py, package.module:factory too (resnet18)")
    add("-b", "--batch-size", type=at_least(2), default=8, metavar="N", help="images a step (8)")
    add("--image-size", type=at_least(1), default=96, metavar="N", help="pixels a side (96)")
    add("--in-channels", type=at_least(1), default=3, metavar="N", help="of the first convolution, made anew (3)")
    add("--num-classes", type=at_least(2), default=10, metavar="N", help="outputs (10)")
    add("--opt-level", choices=OPT_LEVELS, default="O0", help="precision of both formats (O0)")
    add("--against", choices=OPT_LEVELS, help="compare this level with --opt-level too, both in channels-last (none)")
    add("--amp-dtype", choices=AMP_DTYPES, default="auto", help="the half type of O1 to O3 (auto)")
    add("--device", choices=DEVICES, default="auto", help="where to compute (auto)")
    add("--rows", type=at_least(1), default=5, metavar="N", help="rows of a check, the worst first (5)")
    add("--json", type=Path, metavar="FILE", help="every difference, as JSON (none)")
    return parser.parse_args(argv)


def write_json(path: Path, content: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror or error}): give another --json") from error


def compare(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    device = resolve_device(args.device, 0)
    set_backends(device, deterministic=False, tf32=False)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = False, True
    dtype = args.amp_dtype if args.amp_dtype != "auto" else "float16" if device.type == "cuda" else "bfloat16"
    checks: list[Check] = []
    try:
        for case in make_cases(args, device):
            thin = thin_norms(case.model, case.images)
            if thin:
                print(
                    f"note: {len(thin)} batch norms see fewer than {FEW_VALUES} values a channel, such as {thin[0]}: "
                    "rounding is magnified there; raise -b or --image-size"
                )
            for check in checks_of(case, args, dtype):
                show(check, args.rows)
                checks.append(check)
    except torch.OutOfMemoryError as error:
        raise UserError(f"out of memory on {device.type}: lower -b (now {args.batch_size}) or --image-size") from error
    sync_bn = sync_bn_parity.run_checks(device.type)
    for found in sync_bn:
        print(f"SyncBN, {found['name']}: {found['status']}, {found['detail']}")
    line, code = verdict(checks, sync_bn)
    if args.json:
        settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        records = [
            {
                "name": check.name,
                "passed": check.passed,
                "tolerance": check.tolerance,
                "error": check.error,
                "free_steps": check.facts,
                "differences": [vars(found) for found in check.ranked()],
            }
            for check in checks
        ]
        write_json(args.json, {"verdict": line, "settings": settings, "checks": records, "sync_bn": sync_bn})
    print(line)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    return run_to_exit_code("check_parity", lambda: compare(argv))


if __name__ == "__main__":
    sys.exit(main())

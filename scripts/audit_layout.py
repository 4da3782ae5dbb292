#!/usr/bin/env python3
"""Which op in which module of a model drops channels-last, in forward, backward and optimizer step, and what to do.

One step of the real model on a small batch of made-up images: a summary line, then a table by module, the most bytes
written in the wrong order first. --all-torchvision audits every classification model of torchvision and writes one row
for each; models that are in the --json file already are taken from there.

Exit codes: 0 done; 1 the model cannot run in channels-last, or --strict and something is lost; 2 a mistake in the flags.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "scripts" / "bench")) if path not in sys.path]

import torch  # noqa: E402
import torchvision  # noqa: E402
from common import Parser, at_least, refused_batch_named, run_to_exit_code  # noqa: E402

from trainer import build, resolve  # noqa: E402
from trainer.checks import AMP_DTYPES, DEVICES, OPT_LEVELS  # noqa: E402
from trainer.config import TrainConfig  # noqa: E402
from trainer.errors import EXIT_ERROR, EXIT_OK, UserError, os_reason  # noqa: E402
from trainer.exits import Session  # noqa: E402
from trainer.layout_audit import report, step  # noqa: E402

Shape = tuple[int, int, int, int]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("-a", "--arch", help="torchvision name, timm:NAME or package.module:factory")
    add("--opt-level", choices=OPT_LEVELS, default="O0", help="precision (O0)")
    add("--amp-dtype", choices=AMP_DTYPES, default="auto", help="half type of O1 to O3 (auto)")
    add("--device", choices=DEVICES, default="auto", help="where to run (auto)")
    add("--image-size", type=at_least(1), metavar="N", help="pixels (224; 299 for inception_v3)")
    add("--input-shape", type=input_shape, metavar="C,H,W|N,C,H,W", help="shape of the batch, in place of --image-size")
    add("--num-classes", type=at_least(1), default=1000, metavar="N", help="outputs of the model (1000)")
    add("--mode", choices=("train", "eval"), default="train", help="a training step, or a forward pass (train)")
    add("--compile", action="store_true", help="also compare strides under torch.compile with those of eager")
    add("--json", type=Path, metavar="FILE", help="write all that was found")
    add("--strict", action="store_true", help="exit 1 if anything is lost")
    add("--all-torchvision", action="store_true", help="every classification model of torchvision, one row each")
    add("--markdown", type=Path, metavar="FILE", help="with --all-torchvision: write the table there")
    args = parser.parse_args(argv)
    if bool(args.arch) == args.all_torchvision:
        raise UserError("give -a ARCH or --all-torchvision")
    if args.image_size and args.input_shape:
        raise UserError("--image-size and --input-shape both say how large the images are: give one of them")
    if args.markdown and not args.all_torchvision:
        raise UserError("--markdown writes the table of --all-torchvision: add it, or take --json")
    if args.compile and args.mode == "eval":
        raise UserError("--compile compares a training step: drop --mode eval")
    return args


def input_shape(text: str) -> Shape:
    sizes = text.split(",")
    if len(sizes) not in (3, 4) or not all(size.isdigit() and int(size) for size in sizes):
        raise argparse.ArgumentTypeError(f"takes C,H,W or N,C,H,W, got {text!r}")
    n, c, h, w = ["2", *sizes] if len(sizes) == 3 else sizes
    return int(n), int(c), int(h), int(w)


def audit(arch: str, args: argparse.Namespace) -> tuple[step.Findings, dict[str, Any]]:
    """One model audited; what was found and the facts about it, among them the strides' surroundings."""
    session = Session()
    group, _ = build.open_group(args.device, False, True, session)
    try:
        asked = TrainConfig(
            arch=arch, synthetic=True, num_classes=args.num_classes, image_size=args.image_size, opt_level=args.opt_level,
            amp_dtype=args.amp_dtype, device=args.device, channels_last=True, cpu_heap="default",
        )  # fmt: skip
        config, _ = resolve.resolve_config(asked, group.device, group.ranks, None)
        size = config.image_size or 0
        shape = args.input_shape or (2, 3, size, size)
        stepper = build.build_stepper(config, group, new_weights=False).stepper
        model, precision = stepper.model, stepper.precision
        images = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        images = images.to(group.device, precision.input_dtype, memory_format=torch.channels_last)
        target = torch.arange(shape[0], device=group.device) % args.num_classes
        with refused_batch_named(arch, shape):
            differences = step.compare_compiled(model, (images, target), precision) if args.compile else []
            if args.mode == "eval":
                findings = step.audit_evaluation(model, images, precision)
            else:
                findings = step.audit_training_step(model, (images, target), precision, stepper.optimizer)
        findings.differences = differences
    finally:
        group.close(agreed=True)
    precision_name = args.opt_level if args.opt_level == "O0" else f"{args.opt_level} {config.amp_dtype}"
    facts = {
        "arch": arch,
        "input": list(shape),
        "precision": precision_name,
        "mode": args.mode,
        **machine(group.device),
    }
    return findings, facts


def machine(device: torch.device) -> dict[str, str]:
    """What may choose another kernel: versions and the device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "device": f"{device.type} ({name}, {torch.backends.cpu.get_cpu_capability()})",
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "python": platform.python_version(),
    }


def one_model(args: argparse.Namespace) -> int:
    findings, facts = audit(args.arch, args)
    size = "x".join(map(str, facts["input"]))
    print(f"{args.arch} {size} {facts['precision']} {args.mode} on {facts['device']}: {report.summary_line(findings)}")
    for line in report.table(findings):
        print(line)
    if args.json:
        write_json(args.json, report.to_json(findings, facts))
    failed = findings.audit.refused or (args.strict and not findings.clean)
    return EXIT_ERROR if failed else EXIT_OK


def every_model(args: argparse.Namespace) -> int:
    """The table; each model is written to the JSON file as soon as it is done."""
    found = done_before(args)
    names = torchvision.models.list_models(module=torchvision.models)
    for name in names:
        if name not in found:
            findings, facts = audit(name, args)
            found[name] = {**report.to_json(findings, facts), "lost": []}  # the rows by place say enough
            print(f"{name}: {report.summary_line(findings)}", flush=True)
            if args.json:
                write_json(args.json, found)
    if args.markdown:
        args.markdown.parent.mkdir(parents=True, exist_ok=True)
        args.markdown.write_text(markdown([found[name] for name in names]), encoding="utf-8")
    failed = any(found[name]["refused"] or (args.strict and not found[name]["clean"]) for name in names)
    return EXIT_ERROR if failed else EXIT_OK


def done_before(args: argparse.Namespace) -> dict[str, Any]:
    """Models that the --json file has already. Raises UserError where they were audited otherwise than asked."""
    if not args.json or not args.json.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(args.json.read_text(encoding="utf-8"))
        asked = args.opt_level, args.mode, torch.__version__, torchvision.__version__
        for name, row in found.items():
            of_row = row["precision"].split()[0], row["mode"], row["torch"], row["torchvision"]
            if of_row != asked:
                raise UserError(
                    f"{args.json} holds {name} audited with {', '.join(of_row)}, not {', '.join(asked)}: take another --json file"
                )
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{args.json} is no table of --all-torchvision that can be read ({error!r}): take another --json file"
        ) from None
    return found


def markdown(models: Sequence[dict[str, Any]]) -> str:
    """The table as a page."""
    first = models[0]
    lines = [
        "# Which torchvision models keep channels-last",
        "",
        f"Written by `python scripts/audit_layout.py --all-torchvision --markdown FILE`: one {first['mode']} step, random weights, "
        f"{first['precision']}, {first['device']}, torch {first['torch']}, torchvision {first['torchvision']}, Python {first['python']}.",
        "Lost / judged: ops with a channels-last input that wrote a new tensor in another order, of those whose output has an order.",
        "MiB: written in the wrong order in that step. The counts hang on kernels, so on device and version, not on speed.",
        "",
        "| model | input | forward | backward | MiB | where most is lost |",
        "|---|---|---|---|---|---|",
    ]
    for model in models:
        size, worst = "x".join(map(str, model["input"])), model["by_module"][:1]
        place = f"`{worst[0]['op']}` in {worst[0]['module']}, {worst[0]['line']} ({worst[0]['kind']})" if worst else ""
        counts = [
            f"{one['lost']} / {one['kept'] + one['lost']}"
            for one in (model["counts"]["forward"], model["counts"]["backward"])
        ]
        lines.append(
            f"| {model['arch']} | {size} | {' | '.join(counts)} | {model['lost_bytes'] / 2**20:.2f} | {place} |"
        )
    kinds = {kind: text for model in models for kind, text in model["advice"].items()}
    lines += ["", "## What the kinds mean", "", *(f"- {kind}: {text}" for kind, text in sorted(kinds.items()))]
    return "\n".join(lines) + "\n"


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def check_writable(path: Path) -> None:
    """Make the folder and try the file, before anything is measured. Raises UserError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8"):
            pass
        if not path.stat().st_size:
            path.unlink()
    except OSError as error:
        raise UserError(f"--json {path} cannot be written: {os_reason(error)}") from None


def main(argv: Sequence[str] | None = None) -> int:
    def body() -> int:
        args = parse(argv)
        if args.json:
            check_writable(args.json)
        return every_model(args) if args.all_torchvision else one_model(args)

    return run_to_exit_code("audit_layout", body)


if __name__ == "__main__":
    sys.exit(main())

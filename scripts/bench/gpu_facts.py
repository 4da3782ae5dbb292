"""OUT/machine.json for scripts/gpu_check.sh: hardware and versions. Prints how many GPUs there are."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import common
import torch
from machine import describe_machine

from trainer.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("gpu_facts", lambda: write(argv))


def write(argv: Sequence[str] | None) -> int:
    parser = common.Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cuda: insist on one (cuda)")
    args = parser.parse_args(argv)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if args.device == "cuda" and not gpus:
        raise UserError("torch sees no CUDA device: --smoke rehearses everything on a CPU")
    (args.out / "machine.json").write_text(json.dumps({**describe_machine(), "gpus": gpus}, indent=2) + "\n")
    print(gpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Are the weights, buffers and optimizer state of two checkpoints equal, bit for bit? Exit code 1 where they are not."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import common
import torch
from torch import Tensor

PARTS = ("state_dict", "optimizer")


def tensors(content: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Every tensor inside nested dicts and lists, with the way to it."""
    if isinstance(content, Tensor):
        yield name, content
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from tensors(value, f"{name}.{key}")
    elif isinstance(content, (list, tuple)):
        for index, value in enumerate(content):
            yield from tensors(value, f"{name}.{index}")


def load(path: str) -> dict[str, Tensor]:
    content = torch.load(path, weights_only=True, map_location="cpu")
    return {name: tensor for part in PARTS for name, tensor in tensors(content.get(part), part)}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that only one has, or that differ."""
    alone = one.keys() ^ other.keys()
    return sorted(alone | {name for name in one.keys() & other.keys() if not torch.equal(one[name], other[name])})


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("same_weights", lambda: compare(argv))


def compare(argv: Sequence[str] | None) -> int:
    parser = common.Parser(description=__doc__, allow_abbrev=False)
    parser.add_argument("checkpoints", nargs=2, metavar="FILE")
    one, other = map(load, parser.parse_args(argv).checkpoints)
    wrong = differing(one, other)
    if wrong or not one:
        print(f"{len(wrong)} of {len(one)} tensors differ: {', '.join(wrong[:3])}")
        return 1
    print(f"all {len(one)} tensors are equal, bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())

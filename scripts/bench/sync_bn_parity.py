"""SyncBN against plain batch norm: forward, backward and running statistics, both memory formats. Exit code 1 where they differ.

65 channels: an odd number, beyond one block of the channels-last kernels. In a world of one, torch's SyncBatchNorm
module falls back to plain batch norm, so its autograd function is called directly, over NCCL. With two GPUs the module
is asked too: each process has half of a batch that plain batch norm sees whole. What cannot be done here is "not run".
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import common
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules._functions import SyncBatchNorm as SyncBatchNormFunction

from trainer.memory_format import resolve_memory_format

CHANNELS = 65
SHAPE = (8, CHANNELS, 14, 14)
EPS, MOMENTUM = 1e-5, 0.1
FORMATS = ("contiguous_format", "channels_last")
# Of the largest value: kernels add up in another order, and half precision rounds what comes out.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 5e-3}
WORDS = ("output", "input gradient", "weight gradient", "bias gradient", "running mean", "running variance")
Check = dict[str, Any]


class Case:
    """One batch and one set of weights, made the same in every process."""

    def __init__(self, memory_format: str, dtype: torch.dtype, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        self.name = f"{memory_format}, {str(dtype).removeprefix('torch.')}"
        self.tolerance = TOLERANCES[dtype]
        self.memory_format = resolve_memory_format(memory_format == "channels_last")

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        def place(tensor: Tensor) -> Tensor:
            return tensor.to(device, dtype, memory_format=self.memory_format)

        self.images, self.gradient = place(draw(*SHAPE) * 2 + 1), place(draw(*SHAPE))
        self.weight, self.bias = (draw(CHANNELS).add(shift).to(device) for shift in (1.0, 0.0))

    def leaves(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Images, weight, bias that take gradients, and fresh running statistics."""
        images, weight, bias = (t.clone().requires_grad_() for t in (self.images, self.weight, self.bias))
        return images, weight, bias, torch.zeros_like(self.bias), torch.ones_like(self.bias)

    def plain(self) -> list[Tensor]:
        images, weight, bias, mean, variance = self.leaves()
        output = F.batch_norm(images, mean, variance, weight, bias, True, MOMENTUM, EPS)
        return [output, *torch.autograd.grad(output, (images, weight, bias), self.gradient), mean, variance]

    def function(self, group: Any) -> list[Tensor]:
        images, weight, bias, mean, variance = self.leaves()
        output = SyncBatchNormFunction.apply(images, weight, bias, mean, variance, EPS, MOMENTUM, group, 1)
        return [output, *torch.autograd.grad(output, (images, weight, bias), self.gradient), mean, variance]

    def module(self, rank: int, world_size: int) -> list[Tensor]:
        """This rank's slice of the batch; the gradients of weight and bias summed over ranks, as DDP would."""
        device = self.images.device
        module = nn.SyncBatchNorm(CHANNELS, EPS, MOMENTUM).to(device)
        with torch.no_grad():
            module.weight.copy_(self.weight)
            module.bias.copy_(self.bias)
        images = self.images.chunk(world_size)[rank].detach().requires_grad_()
        output = module(images)
        found = torch.autograd.grad(output, (images, module.weight, module.bias), self.gradient.chunk(world_size)[rank])
        for gradient in found[1:]:
            dist.all_reduce(gradient)
        assert module.running_mean is not None
        assert module.running_var is not None
        return [output, *found, module.running_mean, module.running_var]


def compare(name: str, case: Case, found: Sequence[Tensor], plain: Sequence[Tensor]) -> Check:
    """``difference``: the largest, as a share of the largest value of the same tensor."""
    differences = {}
    for word, one, other in zip(WORDS, found, plain, strict=True):
        one, other = one.detach().float(), other.detach().float()
        differences[word] = ((one - other).abs().max() / other.abs().max().clamp_min(1e-6)).item()
    worst = max(differences, key=lambda word: differences[word])
    kept = all(tensor.is_contiguous(memory_format=case.memory_format) for tensor in found[:2])
    passed = kept and all(value <= case.tolerance for value in differences.values())
    return {
        "name": f"{name}, {case.name}",
        "status": "ok" if passed else "failed",
        "detail": f"largest difference {differences[worst]:.1e} ({worst})" + ("" if kept else ", memory format lost"),
        "differences": differences,
    }


def world_of_one(device: torch.device) -> list[Check]:
    """The autograd function over NCCL in this process alone."""
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        cases = [Case(memory_format, dtype, device) for memory_format in FORMATS for dtype in TOLERANCES]
        return [compare("function, one GPU", case, case.function(dist.group.WORLD), case.plain()) for case in cases]
    finally:
        dist.destroy_process_group()


def rank_of_two(rank: int, folder: str) -> None:
    """One of two processes: the module on its half, plain batch norm on the whole."""
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    checks = []
    for memory_format in FORMATS:
        for dtype in TOLERANCES:
            case = Case(memory_format, dtype, device)
            plain = case.plain()
            half = [tensor.chunk(2)[rank] for tensor in plain[:2]]
            name = f"module, two GPUs, rank {rank}"
            checks.append(compare(name, case, case.module(rank, 2), [*half, *plain[2:]]))
    Path(folder, f"{rank}.json").write_text(json.dumps(checks))
    dist.destroy_process_group()


def world_of_two() -> list[Check]:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_of_two, (folder,), nprocs=2)  # type: ignore[no-untyped-call]
        return [check for rank in range(2) for check in json.loads(Path(folder, f"{rank}.json").read_text())]


def not_run(name: str, why: str) -> list[Check]:
    return [{"name": name, "status": "not run", "detail": why}]


def run_checks(device: str) -> list[Check]:
    gpus = torch.cuda.device_count() if device == "cuda" else 0
    nccl = dist.is_available() and dist.is_nccl_available()
    why = "needs CUDA" if not gpus else "" if nccl else "this torch has no NCCL"
    checks = not_run("function, one GPU", why) if why else world_of_one(torch.device("cuda", 0))
    why = why or ("needs two GPUs" if gpus < 2 else "")
    return checks + (not_run("module, two GPUs", why) if why else world_of_two())


def main(argv: Sequence[str] | None = None) -> int:
    return common.run_to_exit_code("sync_bn_parity", lambda: check(argv))


def check(argv: Sequence[str] | None) -> int:
    parser = common.Parser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: nothing can be run (cuda)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="result file (none)")
    args = parser.parse_args(argv)
    checks = run_checks(args.device)
    for found in checks:
        print(f"{found['name']}: {found['status']}, {found['detail']}")
    if args.json:
        args.json.write_text(json.dumps(checks, indent=2) + "\n")
    return 1 if any(found["status"] == "failed" for found in checks) else 0


if __name__ == "__main__":
    sys.exit(main())

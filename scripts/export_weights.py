#!/usr/bin/env python3
"""The weights of a checkpoint alone, as other code loads them.

OUT.pth holds a plain state dict: contiguous float32 tensors under the model's own names, read with
torch.load(OUT, weights_only=True) and taken by load_state_dict(strict=True). --pt2 writes the model itself as a
torch.export program of any batch size, checked against the model before the file appears; how images become its input
(sizes, mean, std, classes) lies in it as preprocessing.json.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_HOMES = (str(ROOT), str(ROOT / "scripts"), str(ROOT / "scripts" / "bench"))
sys.path[:0] = [path for path in _HOMES if path not in sys.path]

import torch  # noqa: E402
from common import Parser, run_to_exit_code  # noqa: E402
from saved_model import SavedModel, load_saved_model  # noqa: E402

from data.cache_files import replace_file  # noqa: E402
from trainer.checkpoint import write_checkpoint  # noqa: E402
from trainer.errors import EXIT_OK, RunError, UserError  # noqa: E402

ABOUT = "preprocessing.json"
_KEYS = ("val_image_size", "val_resize", "interpolation", "mean", "std")
_TOLERANCE = 1e-4  # relative to the largest output


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="a checkpoint of train.py")
    add("out", type=Path, metavar="OUT.pth", nargs="?", help="where the weights go")
    add("--ema", action="store_true", help="the averaged weights instead of the raw ones")
    add("--pt2", type=Path, metavar="OUT.pt2", help="write a torch.export program too, or alone")
    add("--force", action="store_true", help="write over files that are there")
    args = parser.parse_args(argv)
    if not args.out and not args.pt2:
        raise UserError("nothing to write: give OUT.pth or --pt2 OUT.pt2")
    if args.out and args.pt2 and args.out.absolute() == args.pt2.absolute():
        raise UserError(f"{args.out} is to hold the weights and the program too: name two files")
    for path in filter(None, (args.out, args.pt2)):
        if not path.parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent}")
        if path.is_dir() or (path.exists() and args.checkpoint.exists() and path.samefile(args.checkpoint)):
            raise UserError(f"{path} is a folder or the checkpoint itself: name another file")
        if path.exists() and not args.force:
            raise UserError(f"{path} is there already: name another file, or write over it with --force")
    return args


def write_program(saved: SavedModel, path: Path) -> None:
    """Export, save, read back and compare with the model on batches of 1, 2 and 5; then the file takes its name."""
    size = saved.resolved["val_image_size"]
    images = torch.rand(5, 3, size, size, generator=torch.Generator().manual_seed(0)) * 4 - 2
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(saved.model, (images[:2],), dynamic_shapes=({0: batch},))
    about = {key: saved.resolved[key] for key in _KEYS} | {"arch": saved.arch, "classes": saved.classes}
    stream = io.BytesIO()
    torch.export.save(program, stream, extra_files={ABOUT: json.dumps(about)})
    stream.seek(0)
    again = torch.export.load(stream).module()
    for count in (1, 2, 5):
        with torch.no_grad():
            wanted, got = saved.model(images[:count]), again(images[:count])
        if not torch.allclose(got, wanted, rtol=0, atol=_TOLERANCE * float(wanted.abs().max().clamp(min=1))):
            worst = float((got - wanted).abs().max())
            raise RunError(f"the exported program differs from the model by {worst:.3g}: {path} is not written")
    replace_file(path, lambda file: file.write(stream.getbuffer()))


def metric(saved: SavedModel, ema: bool) -> str:
    """What the checkpoint says of its own accuracy; ``ema``: the average is what is exported."""
    content = saved.content
    best, epoch, done = content.get("best_acc1", 0.0), content.get("best_epoch", -1), content["epoch"]
    if epoch < 0:
        return f"after {content['step']} steps, never validated"
    own = epoch == done - 1 and not content.get("samples_in_epoch")
    whose = "these weights" if own else f"not necessarily these weights: they are of step {content['step']}"
    followed = bool(content["config"].get("ema_eval"))
    if followed != ema:
        whose = (
            "the average, which --ema exports; these are the raw weights"
            if followed
            else "the raw weights; this is their average"
        )
    return f"best Prec@1 {best:.3f} at epoch {epoch} ({whose})"


def export(argv: Sequence[str] | None) -> int:
    args = parse(argv)
    saved = load_saved_model(args.checkpoint, args.ema)
    count = sum(parameter.numel() for parameter in saved.model.parameters())
    print(f"{saved.arch}, {saved.resolved['num_classes']} classes, {count} parameters; {metric(saved, args.ema)}")
    try:
        if args.out:
            tensors = {
                name: value.contiguous() for name, value in saved.state.items() if isinstance(value, torch.Tensor)
            }
            write_checkpoint(args.out, tensors)
            print(f"written: {args.out}")
        if args.pt2:
            write_program(saved, args.pt2)
            size = saved.resolved["val_image_size"]
            print(f"written: {args.pt2}, for float32 images (N, 3, {size}, {size}) normalised as its {ABOUT} says")
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror or error} ({error.filename or args.out})") from error
    return EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    return run_to_exit_code("export_weights", lambda: export(argv))


if __name__ == "__main__":
    sys.exit(main())

"""What TensorBoard shows of images each epoch: augmented training ones, the worst validation errors, the confusions.

In a step all of it stays on the device; the host reads once an epoch, after the validation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from trainer.distributed import Group
from trainer.run_log import RunFiles

SHOWN = 16
MOST_CLASSES = 100  # of a confusion matrix and of per-class accuracy
_TILE = 112  # pixels of a thumbnail
_COLUMNS = 4
_LINE = 12  # pixels of a line of text

Batches = Iterator[tuple[Tensor, Tensor]]


class Gallery:
    """``classes``: names by index; ``mean`` and ``std``: what images were normalised with. Every rank has one."""

    def __init__(self, group: Group, classes: Sequence[str], mean: Sequence[float], std: Sequence[float]) -> None:
        self._group = group
        self._classes = classes
        self._mean, self._std = (torch.tensor(value).view(3, 1, 1) for value in (mean, std))
        self._train: tuple[Tensor, Tensor] | None = None
        self.confusion: Tensor | None = None  # (classes, classes) int64: row of the label, column of the answer
        self._worst: tuple[Tensor, ...] | None = None  # loss, label, answer and image of the worst so far

    def first_kept(self, batches: Batches) -> Batches:
        """The same batches; the first images of the first one that has any are kept: bad ones leave their batch."""
        self._train = None
        for images, target in batches:
            if self._train is None and len(target):
                self._train = images[:SHOWN].clone(), target[:SHOWN].clone()
            yield images, target

    def start_validation(self) -> None:
        self._worst = None
        count = len(self._classes)
        self.confusion = None
        if count <= MOST_CLASSES:
            self.confusion = torch.zeros(count, count, dtype=torch.int64, device=self._group.device)

    @torch.no_grad()
    def add(self, images: Tensor, output: Tensor, target: Tensor) -> None:
        """One validation batch: images (N, 3, H, W), output (N, classes), target (N,) int64."""
        answer = output.argmax(dim=1)
        if self.confusion is not None and output.shape[1] == len(self._classes):
            places = target * len(self._classes) + answer
            self.confusion.view(-1).scatter_add_(0, places, torch.ones_like(places))
        losses = torch.nn.functional.cross_entropy(output.float(), target, reduction="none")
        losses = losses.nan_to_num(nan=torch.inf, posinf=torch.inf)
        losses = torch.where(answer == target, torch.full_like(losses, -1.0), losses)
        best = losses.topk(min(SHOWN, len(losses))).indices
        found: tuple[Tensor, ...] = losses[best], target[best], answer[best], images[best]
        if self._worst is not None:
            both = [torch.cat(pair) for pair in zip(self._worst, found, strict=True)]
            best = both[0].topk(min(SHOWN, len(both[0]))).indices
            found = tuple(each[best] for each in both)
        self._worst = found

    def write(self, files: RunFiles | None, step: int) -> None:
        """Hand everything to the event file. Every rank calls it; waits for the device."""
        tiles = self._worst_tiles()
        confusion = None if self.confusion is None else self._group.sum(self.confusion).cpu().numpy()
        train, self._train = self._train, None
        if files is None:
            return
        if train is not None:
            files.add_image("images/train", grid(self._train_tiles(*train)), step)
        if tiles:
            files.add_image("images/worst_val_errors", grid(tiles), step)
        if confusion is not None and confusion.any():  # a model may have other outputs than the classes
            files.add_image("images/confusion", confusion_picture(confusion, self._classes), step)
            counts = confusion.sum(axis=1)
            files.add_scalars(
                {
                    f"val_class_acc1/{name}": 100 * int(confusion[index, index]) / int(counts[index])
                    for index, name in enumerate(self._classes)
                    if counts[index]
                },
                step,
            )

    def _train_tiles(self, images: Tensor, target: Tensor) -> list[tuple[np.ndarray, str]]:
        if target.dim() == 2:  # mixed: probabilities
            shares, labels = (each.tolist() for each in target.max(dim=1))
            texts = [f"{share:.2f} {self._name(label)}" for share, label in zip(shares, labels, strict=True)]
        else:
            texts = [self._name(label) for label in target.tolist()]
        return list(zip(self._thumbnails(images), texts, strict=True))

    def _worst_tiles(self) -> list[tuple[np.ndarray, str]]:
        """Of all ranks; the label above the answer."""
        mine: list[tuple[float, int, int, np.ndarray]] = []
        if self._worst is not None:
            losses, target, answer, images = self._worst
            pictures = self._thumbnails(images)
            mine = list(zip(losses.tolist(), target.tolist(), answer.tolist(), pictures, strict=True))
        found = [one for rank in self._group.gather([one for one in mine if one[0] >= 0]) for one in rank]
        worst = sorted(found, key=lambda one: -one[0])[:SHOWN]
        return [
            (picture, f"{self._name(label)}\nnot {self._name(wrong)} ({loss:.2f})")
            for loss, label, wrong, picture in worst
        ]

    def _thumbnails(self, images: Tensor) -> list[np.ndarray]:
        """(N, 3, H, W) as normalised -> uint8 arrays (tile, tile, 3)."""
        small = torch.nn.functional.interpolate(images.float(), (_TILE, _TILE), mode="area").cpu()
        pixels = ((small * self._std + self._mean) * 255).nan_to_num(0).round().clamp(0, 255).to(torch.uint8)
        return list(pixels.permute(0, 2, 3, 1).numpy())

    def _name(self, label: int) -> str:
        return self._classes[label] if label < len(self._classes) else str(label)


def grid(tiles: Sequence[tuple[np.ndarray, str]]) -> np.ndarray:
    """Pictures in rows of four, each with its text below: uint8 (H, W, 3)."""
    height = _TILE + _LINE * max(text.count("\n") + 1 for _, text in tiles) + 4
    rows = -(-len(tiles) // _COLUMNS)
    sheet = Image.new("RGB", (_COLUMNS * (_TILE + 4), rows * height), "white")
    draw = ImageDraw.Draw(sheet)
    for place, (picture, text) in enumerate(tiles):
        left, top = place % _COLUMNS * (_TILE + 4), place // _COLUMNS * height
        sheet.paste(Image.fromarray(picture), (left, top))
        for line, words in enumerate(text.split("\n")):
            draw.text((left, top + _TILE + line * _LINE), _ascii(words)[:18], fill="black")
    return np.asarray(sheet)


def confusion_picture(confusion: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Rows are labels, columns answers, each row's shares from white to blue: uint8 (H, W, 3)."""
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    colours = np.stack([255 - 255 * shares, 255 - 141 * shares, 255 - 77 * shares], axis=2).round().astype(np.uint8)
    cell = max(4, 480 // len(confusion))
    margin = 90
    sheet = Image.new("RGB", (margin + cell * len(confusion), _LINE * 2 + cell * len(confusion)), "#dddddd")
    sheet.paste(
        Image.fromarray(colours).resize((cell * len(confusion),) * 2, Image.Resampling.NEAREST), (margin, _LINE * 2)
    )
    draw = ImageDraw.Draw(sheet)
    draw.text((2, 0), "rows: label; columns: answer, in the same order", fill="black")
    for index, name in enumerate(classes):
        if cell >= _LINE:
            draw.text((2, _LINE * 2 + index * cell + (cell - _LINE) // 2), _ascii(name)[:14], fill="black")
        if cell >= 2 * _LINE:
            draw.text((margin + index * cell + 2, _LINE), _ascii(name)[: cell // 7], fill="black")
    return np.asarray(sheet)


def _ascii(text: str) -> str:
    """What Pillow's own font can draw."""
    return text.encode("ascii", "replace").decode()

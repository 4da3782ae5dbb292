"""Samples -> one uint8 batch in channels-last memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def fast_collate(samples: Sequence[tuple[Image.Image, int]]) -> tuple[Tensor, Tensor]:
    """RGB Pillow images of one size -> (N, 3, H, W) uint8 with NHWC strides, and (N,) int64 labels.

    Pillow's rows are height x width x channel already: the batch is written once, in that order,
    and returned as its channels-last view. Nothing is normalised or transposed here.
    """
    width, height = samples[0][0].size
    batch = torch.empty((len(samples), height, width, 3), dtype=torch.uint8)
    rows = batch.numpy()
    for position, (image, _) in enumerate(samples):
        rows[position] = np.asarray(image)
    return batch.permute(0, 3, 1, 2), torch.tensor([label for _, label in samples], dtype=torch.int64)

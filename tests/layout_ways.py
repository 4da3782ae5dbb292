"""Ways through a tensor of another order or rank: ``LOST`` give NCHW back for a channels-last image, ``HELD`` do not."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Way = Callable[[Tensor], Tensor]


def nchw(x: Tensor, channels: int = 8) -> Tensor:
    """New zeros (2, channels, 6, 6), contiguous, as code that allocates first makes them."""
    return torch.zeros(len(x), channels, *x.shape[2:])


def into_part(x: Tensor) -> Tensor:
    out = nchw(x, 16)
    out[:, :8] = x
    return out


def into_picked(x: Tensor) -> Tensor:
    out = nchw(x)
    out[:, torch.arange(8)] = x
    return out


def into_view_of_another_rank(x: Tensor) -> Tensor:
    out = nchw(x)
    out.view(len(x), 8, 36).copy_(x.flatten(2))
    return out + 1


def into_sum(x: Tensor) -> Tensor:
    out = nchw(x)
    out += x
    return out


def into_out(x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.mul(x, 2, out=nchw(x))


def times_weight(x: Tensor, channels: int) -> Tensor:
    weight = torch.ones(channels, x.shape[1])
    return (weight @ x.flatten(2)).relu().view(len(x), channels, *x.shape[2:])


def tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


def gram(x: Tensor) -> Tensor:
    f = x.flatten(2)
    return (f @ f.transpose(1, 2) @ f).view_as(x)


def conv1d(x: Tensor) -> Tensor:
    return F.conv1d(x.flatten(2), torch.ones(8, 8, 1)).view(2, 8, 6, 6)


def conv3d(x: Tensor) -> Tensor:
    frames = x.view(1, 2, 8, 6, 6).transpose(1, 2)
    return F.conv3d(frames, torch.ones(8, 8, 1, 1, 1)).transpose(1, 2).reshape(2, 8, 6, 6)


def class_token(x: Tensor) -> Tensor:
    with_token = torch.cat([torch.zeros(len(x), 1, 8), tokens(x)], 1)
    return F.linear(with_token, torch.eye(8))[:, 1:].transpose(1, 2).contiguous().view(2, 8, 6, 6)


# name -> (way, op blamed in the forward pass)
LOST: dict[str, tuple[Way, str]] = {
    "index assignment": (into_part, "copy_"),
    "picked assignment": (into_picked, "index_put_"),
    "another rank": (into_view_of_another_rank, "copy_"),
    "copy_": (lambda x: nchw(x).copy_(x), "copy_"),
    "in place": (into_sum, "add_.Tensor"),
    "out=": (into_out, "mul.out"),
    "circular pad": (lambda x: F.pad(x, (1, 1, 1, 1), "circular"), "copy_"),
    "circular convolution": (lambda x: nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")(x), "copy_"),
    "maxout": (lambda x: x.view(2, 4, 2, 6, 6).amax(2), "amax"),
    "stack of images": (lambda x: torch.stack([one * 2 for one in x]), "stack"),
    "stack of planes": (lambda x: torch.stack([x[:, channel] for channel in range(8)], 1), "stack"),
    "unfolded mean": (lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).mean((-1, -2)), "mean.dim"),
    "mean over frames": (lambda x: x.view(1, 2, 8, 6, 6).mean(1), "mean.dim"),
    "square weight": (lambda x: times_weight(x, 8), "bmm"),
    "wider weight": (lambda x: times_weight(x, 16), "bmm"),
    "conv1d": (conv1d, "convolution"),
    "frames of a video": (conv3d, "convolution"),
    "batch norm of rows": (lambda x: F.batch_norm(x.flatten(2), None, None, training=True).view(2, 8, 6, 6), "native_batch_norm"),
    "layer norm of planes": (lambda x: F.layer_norm(x.flatten(2), (36,)).view(2, 8, 6, 6), "native_layer_norm"),
    "tokens": (lambda x: tokens(x).relu().transpose(1, 2).contiguous().view(2, 8, 6, 6), "clone"),
    "tokens with a class": (class_token, "clone"),
    "gram": (gram, "bmm"),
    "attention of channels": (
        lambda x: F.scaled_dot_product_attention(*[x.flatten(2)] * 3).view(2, 8, 6, 6), "",
    ),
    "windows as images": (lambda x: x.view(2, 8, 2, 3, 2, 3).permute(0, 2, 4, 1, 3, 5).reshape(8, 8, 3, 3), "clone"),
    "space to depth by hand": (
        lambda x: x.view(2, 8, 3, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).reshape(2, 32, 3, 3), "clone",
    ),
    "pixel shuffle by hand": (
        lambda x: x.view(2, 2, 2, 2, 6, 6).permute(0, 1, 4, 2, 5, 3).reshape(2, 2, 12, 12), "clone",
    ),
}  # fmt: skip


def attention(x: Tensor) -> Tensor:
    """Heads as their own dimension, tokens back to an image by a view."""
    q = tokens(x).unflatten(2, (2, 4)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2).transpose(1, 2).reshape(2, 8, 6, 6)


def axial(x: Tensor) -> Tensor:
    rows = x.permute(0, 2, 3, 1).reshape(12, 6, 2, 4).transpose(1, 2)
    return ((rows @ rows.transpose(2, 3)) @ rows).transpose(1, 2).reshape(2, 6, 6, 8).permute(0, 3, 1, 2)


def shuffle_in_nhwc(x: Tensor) -> Tensor:
    last = x.permute(0, 2, 3, 1).unflatten(3, (2, 4)).transpose(3, 4)
    return last.flatten(3).permute(0, 3, 1, 2)


def decoder(x: Tensor) -> Tensor:
    return F.linear(x.detach().mean((2, 3)), torch.ones(8 * 36, 8)).view(2, 8, 6, 6)


def decoder_of_tokens(x: Tensor) -> Tensor:
    return F.linear(x.detach().flatten(2).mean(2), torch.ones(8 * 36, 8)).view(2, 8, 6, 6)


def window(x: Tensor) -> Tensor:
    parts = x.permute(0, 2, 3, 1).reshape(2, 2, 3, 2, 3, 8).transpose(2, 3).reshape(8, 9, 8)
    parts = F.layer_norm(F.linear(parts, torch.eye(8)), (8,)).view(2, 2, 2, 3, 3, 8)
    return parts.transpose(2, 3).reshape(2, 6, 6, 8).permute(0, 3, 1, 2)


def into_channels_last(x: Tensor) -> Tensor:
    out = nchw(x, 16).to(memory_format=torch.channels_last)
    out[:, :8] = x.detach()
    out += 1
    return out


def pixel_shuffle_in_nhwc(x: Tensor) -> Tensor:
    parts = x.permute(0, 2, 3, 1).unflatten(3, (2, 2, 2)).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(2, 12, 12, 2).permute(0, 3, 1, 2)


def attention_over_pixels(x: Tensor) -> Tensor:
    """Scores (N, heads, HW, HW) as a 4-D tensor of their own."""
    q = F.linear(tokens(x), torch.eye(8)).unflatten(2, (2, 4)).transpose(1, 2)
    scores = (q @ q.transpose(2, 3)).softmax(3)
    return (scores @ q).transpose(1, 2).reshape(2, 36, 8).transpose(1, 2).reshape(2, 8, 6, 6)


HELD: dict[str, Way] = {
    "attention": attention,
    "axial attention": axial,
    "attention over pixels": attention_over_pixels,
    "pixel shuffle in NHWC": pixel_shuffle_in_nhwc,
    "rows and columns swapped": lambda x: x.transpose(2, 3).relu().transpose(2, 3) + 1,
    "windows": window,
    "shuffle in NHWC": shuffle_in_nhwc,
    "decoder from a pooled vector": decoder,
    "decoder from pooled tokens": decoder_of_tokens,
    "preallocated in the right order": into_channels_last,
    "permuted linear": lambda x: F.linear(x.permute(0, 2, 3, 1), torch.ones(6, 8)).relu().permute(0, 3, 1, 2),
    "layer norm per pixel": lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2),
    "layer norm per token": lambda x: F.layer_norm(tokens(x), (8,)).transpose(1, 2).view(2, 8, 6, 6),
    "tokens as an image": lambda x: F.linear(tokens(x), torch.ones(16, 8)).transpose(1, 2).reshape(2, 16, 6, 6),
    "pixel shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "split": lambda x: torch.cat([part.relu() for part in x.chunk(2, 1)], 1),
    "spatial mask": lambda x: x * x.mean(1, keepdim=True).sigmoid() * x.amax(1).unsqueeze(1),
    "squeeze-excite without keepdim": lambda x: x * x.mean((2, 3)).sigmoid()[:, :, None, None],
    "group norm of groups": lambda x: F.group_norm(x, 2),
    "in place": lambda x: (x * 1).add_(1).relu_(),
    "one image at a time": lambda x: torch.cat([one[None].relu() for one in x]),
}

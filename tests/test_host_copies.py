"""Copies on the host: made in the layout of what they copy, contiguous only where nobody waits for it."""

from __future__ import annotations

import torch

from trainer.host_copies import HostCopies, contiguous


def test_a_copy_has_the_strides_of_its_tensor_and_the_next_takes_its_place() -> None:
    """Turning channels-last weights round costs three times the copy, and the training would wait for it."""
    copies = HostCopies(torch.device("cpu"))
    weights = torch.randn(6, 5, 3, 3).to(memory_format=torch.channels_last)
    copy = copies.take("weights", weights)
    copies.copy()
    assert torch.equal(copy, weights)
    assert copy.stride() == weights.stride()
    kept, weights = copy, weights + 1
    again = copies.take("weights", weights)
    copies.copy()
    assert again is kept
    assert torch.equal(kept, weights)


def test_halves_become_float32_and_what_is_no_tensor_stays() -> None:
    copies = HostCopies(torch.device("cpu"))
    half, count = copies.take("half", torch.ones(2, dtype=torch.bfloat16)), copies.take("count", torch.tensor(3))
    copies.copy()
    assert (half.dtype, count.dtype, copies.take("name", "x")) == (torch.float32, torch.int64, "x")


def test_a_content_is_contiguous_throughout() -> None:
    turned = torch.randn(6, 5, 3, 3).to(memory_format=torch.channels_last)
    content = {"state_dict": {"a": turned, "b": torch.ones(2)}, "rng": [{"cpu": turned}], "step": 3, "ema": None}
    made = contiguous(content)
    assert made["state_dict"]["a"].is_contiguous()
    assert made["rng"][0]["cpu"].is_contiguous()
    assert torch.equal(made["state_dict"]["a"], turned)
    assert made["state_dict"]["b"] is content["state_dict"]["b"], "no copy where none is needed"
    assert (made["step"], made["ema"]) == (3, None)

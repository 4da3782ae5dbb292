"""The five classes of ``memory_format_of`` over every small shape, against memory order found by brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from trainer.memory_format import apply_to_model, describe_strides, is_misread, left_alone, memory_format_of

SHAPES = list(itertools.product((1, 2, 3), repeat=4))
FORMATS = (torch.contiguous_format, torch.channels_last)


def offsets(tensor: Tensor, order: tuple[int, ...]) -> list[int]:
    """Memory offsets of the elements, walked with ``order``'s last dimension fastest."""
    places = itertools.product(*(range(tensor.shape[dim]) for dim in order))
    return [sum(i * tensor.stride(dim) for i, dim in zip(place, order, strict=True)) for place in places]


def rises(values: list[int]) -> bool:
    return all(a < b for a, b in itertools.pairwise(values))


def expected(tensor: Tensor) -> str:
    """The class by walking memory; tensors whose unit dimensions mislead PyTorch are left to a test of their own."""
    nhwc, nchw = offsets(tensor, (0, 2, 3, 1)), offsets(tensor, (0, 1, 2, 3))
    dense = max(nchw) + 1 == tensor.numel()
    if rises(nhwc) and rises(nchw):
        return "ambiguous"
    if rises(nhwc):
        return "channels_last" if dense else "strided_view"
    return "contiguous" if rises(nchw) and dense else "other"


def in_both_formats(shape: tuple[int, ...]) -> Iterator[Tensor]:
    for memory_format in FORMATS:
        yield torch.empty(shape).to(memory_format=memory_format)


def variants(shape: tuple[int, ...]) -> Iterator[Tensor]:
    """Dense, sliced in each dimension, expanded, permuted, made larger and cut back."""
    for dense in in_both_formats(shape):
        yield dense
        for order in itertools.permutations(range(4)):
            yield dense.permute(order)
        for dim in range(4):
            yield dense.narrow(dim, 0, max(1, shape[dim] - 1))
            yield dense.narrow(dim, 0, 1).expand(shape)
    for dim in range(4):
        for double in in_both_formats(tuple(2 * size if d == dim else size for d, size in enumerate(shape))):
            yield double.narrow(dim, 0, shape[dim])
            yield double[tuple(slice(None, None, 2 if d == dim else 1) for d in range(4))]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_small_shape_against_a_walk_through_memory(shape: tuple[int, ...]) -> None:
    seen = list(variants(shape))
    for tensor in seen:
        if not is_misread(tensor):
            assert memory_format_of(tensor) == expected(tensor), (tensor.shape, tensor.stride())
    if min(shape) > 1:
        assert {memory_format_of(t) for t in seen} >= {"channels_last", "contiguous", "strided_view", "other"}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dense_tensors_against_the_flags_of_torch(shape: tuple[int, ...]) -> None:
    for tensor in in_both_formats(shape):
        flags = [tensor.is_contiguous(memory_format=memory_format) for memory_format in FORMATS]
        wanted = {(True, True): "ambiguous", (True, False): "contiguous", (False, True): "channels_last"}[tuple(flags)]
        assert memory_format_of(tensor) == wanted


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[1] > 1 and max(shape[2:]) > 1], ids=str)
def test_misread_is_what_a_kernel_of_torch_does_not_take_for_channels_last(shape: tuple[int, ...]) -> None:
    """avg_pool2d asks for the suggested format of its input and writes that."""
    for tensor in variants(shape):
        if expected(tensor) == "channels_last":
            written = torch.nn.functional.avg_pool2d(tensor, 1)
            taken = written.is_contiguous(memory_format=torch.channels_last)
            assert is_misread(tensor) == (not taken), (tensor.shape, tensor.stride())


def test_a_permuted_single_image_says_nothing() -> None:
    image = torch.empty(4, 5, 3).permute(2, 0, 1)[None]
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert is_misread(image)
    assert memory_format_of(image) == "ambiguous"
    assert memory_format_of(image.contiguous(memory_format=torch.channels_last)) == "ambiguous"  # sees nothing to do
    assert memory_format_of(image.to(memory_format=torch.channels_last)) == "channels_last"


def test_slices_and_empty_tensors() -> None:
    images = torch.empty(2, 8, 4, 4).to(memory_format=torch.channels_last)
    assert memory_format_of(images[:, :4]) == "strided_view"
    assert memory_format_of(images[:, :1]) == "ambiguous"
    assert memory_format_of(images[:, :, :1, :1]) == "ambiguous"
    assert memory_format_of(images[:0]) == "ambiguous"
    assert memory_format_of(images.contiguous()[:, :4]) == "other"


def test_other_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="4-D"):
        memory_format_of(torch.empty(3, 4, 5))


def test_only_tensors_of_four_dimensions_are_converted_and_larger_ones_listed() -> None:
    model = nn.ModuleDict({"image": nn.Conv2d(3, 4, 3), "video": nn.Conv3d(3, 4, 3), "head": nn.Linear(4, 2)})
    model.register_buffer("mean", torch.zeros(2, 3, 4, 4))
    before = {name: tensor.stride() for name, tensor in model.state_dict().items()}
    assert apply_to_model(model, torch.channels_last) is model
    changed = {name for name, tensor in model.state_dict().items() if tensor.stride() != before[name]}
    assert changed == {"image.weight", "mean"}
    assert left_alone(model) == ["video.weight"]
    assert describe_strides(model, torch.zeros(1, 3, 2, 2)) == (
        "first batch (1, 3, 2, 2) strides (12, 4, 2, 1); image.weight (4, 3, 3, 3) strides (27, 1, 9, 3); "
        "not 4-D, left as they are: video.weight"
    )
    assert describe_strides(model["image"], torch.zeros(1, 3, 2, 2)).endswith("(27, 1, 9, 3)")

"""Running sums of loss and accuracy against a direct computation."""

from __future__ import annotations

import math

import pytest
import torch

from trainer.distributed import Group, Ranks
from trainer.metrics import RunningSums, correct_in_top, means_of

CPU = torch.device("cpu")


@pytest.fixture
def group() -> Group:
    return Group(Ranks(), CPU)


def batches(classes: int, sizes: tuple[int, ...] = (8, 8, 3)) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(loss, output, target), the loss a mean over the batch."""
    generator = torch.Generator().manual_seed(classes)
    found = []
    for size in sizes:
        output = torch.randn(size, classes, generator=generator)
        target = torch.randint(classes, (size,), generator=generator)
        found.append((torch.nn.functional.cross_entropy(output, target), output, target))
    return found


def direct(made: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> tuple[float, float, float, int]:
    """Over all images at once, ranks counted by sorting."""
    output, target = (torch.cat([batch[part] for batch in made]) for part in (1, 2))
    place = [
        sorted(row.tolist(), reverse=True).index(row[label].item()) for row, label in zip(output, target, strict=True)
    ]
    count = len(place)
    loss = torch.nn.functional.cross_entropy(output, target).item()
    return loss, 100 * sum(p < 1 for p in place) / count, 100 * sum(p < 5 for p in place) / count, count


@pytest.mark.parametrize("classes", [2, 3, 5, 6, 50])
def test_means_equal_a_direct_computation(classes: int, group: Group):
    """A short last batch counts by its images; with five classes or fewer (R19) acc5 is 100."""
    made, sums = batches(classes), RunningSums(CPU)
    for loss, output, target in made:
        sums.add(loss, output, target)
    means = means_of(sums.take(group))
    loss, acc1, acc5, images = direct(made)
    assert (means.acc1, means.acc5, means.images) == (pytest.approx(acc1), pytest.approx(acc5), images)
    assert means.loss == pytest.approx(loss, rel=1e-6)
    assert (means.acc5 == 100) == (classes <= 5 or acc5 == 100)


def test_best_and_best_five_of_three_classes():
    """R19: topk of 5 raises where there are 3."""
    output = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    best, best_five = correct_in_top(output, torch.tensor([1, 1, 2]))
    assert (best.item(), best_five.item()) == (2, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_outputs_count_too(dtype: torch.dtype):
    output = torch.eye(8, dtype=dtype)
    best, best_five = correct_in_top(output, torch.arange(8))
    assert (best.item(), best.dtype) == (8, torch.float32)
    assert best_five.item() == 8


def test_windows_add_up_to_the_total(group: Group):
    made, sums, windows = batches(6), RunningSums(CPU), []
    for loss, output, target in made:
        sums.add(loss, output, target)
        windows.append(means_of(sums.take(group)))
    for (loss, _, target), window in zip(made, windows, strict=True):
        assert window.loss == pytest.approx(loss.item())
        assert window.images == len(target)
    loss, acc1, acc5, images = direct(made)
    total = means_of(sums.total)
    assert (total.loss, total.acc1, total.acc5) == (pytest.approx(loss), pytest.approx(acc1), pytest.approx(acc5))
    assert total.images == images
    assert means_of(sums.total_over(group)) == total


def test_sums_go_on_from_a_checkpoints(group: Group):
    made = batches(6)
    straight, first = RunningSums(CPU), RunningSums(CPU)
    for batch in made:
        straight.add(*batch)
    first.add(*made[0])
    first.take(group)
    second = RunningSums(CPU, list(first.total))
    for batch in made[1:]:
        second.add(*batch)
    straight.take(group)
    second.take(group)
    assert second.total == pytest.approx(straight.total)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_non_finite_loss_stays_visible_in_the_mean_and_leaves_later_windows(value: float, group: Group):
    (loss, output, target), *_ = batches(6)
    sums = RunningSums(CPU)
    sums.add(torch.tensor(value), output, target)
    assert not math.isfinite(means_of(sums.take(group)).loss)
    sums.add(loss, output, target)
    assert means_of(sums.take(group)).loss == pytest.approx(loss.item())
    assert not math.isfinite(means_of(sums.total).loss)
    assert math.isfinite(means_of(sums.total).acc1)


def test_no_images_have_no_mean(group: Group):
    means = means_of(RunningSums(CPU).take(group))
    assert means.images == 0
    assert math.isnan(means.loss)
    assert math.isnan(means.acc1)


def test_many_small_losses_do_not_drown_in_a_large_sum(group: Group):
    sums = RunningSums(CPU, [1e9, 0.0, 0.0, 1e9])
    output, target = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)
    for _ in range(1000):
        sums.add(torch.tensor(0.01), output, target)
    sums.take(group)
    assert sums.total[0] - 1e9 == pytest.approx(10, abs=1e-3)


def test_the_loss_needs_no_graph(group: Group):
    loss = torch.ones((), requires_grad=True) * 2
    sums = RunningSums(CPU)
    sums.add(loss, torch.zeros(4, 3, requires_grad=True), torch.zeros(4, dtype=torch.int64))
    assert means_of(sums.take(group)).loss == 2

"""Which sample goes to which rank in which step: each exactly once, at any world size, from any position."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from data.sampler import StepPlan, StepSampler, rank_share

Step = tuple[StepPlan, list[list[int]]]


def walk(sampler: StepSampler) -> list[Step]:
    """Each step's plan beside the sample indices of its batches, keys checked."""
    plans, batches = list(sampler.plans()), iter(sampler)
    steps = []
    for plan in plans:
        keys = [next(batches) for _ in plan.batch_sizes]
        assert all(epoch == sampler.epoch for batch in keys for epoch, _ in batch)
        steps.append((plan, [[index for _, index in batch] for batch in keys]))
    assert next(batches, None) is None
    return steps


def all_ranks(size: int, batch: int, world: int, start: tuple[int, int] = (0, 0), **options) -> list[StepSampler]:
    samplers = [StepSampler(size, batch, rank, world, **options) for rank in range(world)]
    for sampler in samplers:
        sampler.start(*start)
    return samplers


def flat(step: Step) -> list[int]:
    return [index for batch in step[1] for index in batch]


def together(walks: list[list[Step]]) -> list[list[int]]:
    """The samples of each step over all ranks, sorted."""
    return [sorted(index for step in steps for index in flat(step)) for steps in zip(*walks, strict=True)]


COMBINATIONS = [
    (size, batch, world, accumulation, max_steps)
    for size, batch, world, accumulation, max_steps in itertools.product(
        (2, 3, 7, 8, 9, 16, 31, 50, 97), (1, 2, 3, 8), (1, 2, 3, 4), (1, 2, 3), (None, 1, 4)
    )
]


def test_every_sample_once_whatever_the_sizes():
    """R64: as many steps and batches on every rank, no sample twice, all but a tiny remainder taken."""
    for size, batch, world, accumulation, max_steps in COMBINATIONS:
        samplers = all_ranks(size, batch, world, accumulation=accumulation, max_steps=max_steps, seed=3)
        walks = [walk(sampler) for sampler in samplers]
        order, whole = samplers[0].order(), batch * world * accumulation
        asked = size if max_steps is None else min(size, max_steps * whole)
        rest = asked % whole
        dropped = rest if rest < 2 * world else 0
        steps = together(walks)
        context = (size, batch, world, accumulation, max_steps)
        expected = [order[at : min(at + whole, asked - dropped)] for at in range(0, asked - dropped, whole)]
        assert steps == [sorted(chunk.tolist()) for chunk in expected], context
        assert all(len(steps) == sampler.steps_in_epoch() for sampler in samplers), context
        # What --steps-per-epoch cuts off is not "left over"; a remainder too small for a step is.
        assert {sampler.dropped for sampler in samplers} == {dropped if asked == size else 0}, context


def test_plans_say_what_the_batches_are():
    for size, batch, world, accumulation, max_steps in COMBINATIONS:
        walks = [walk(s) for s in all_ranks(size, batch, world, accumulation=accumulation, max_steps=max_steps)]
        for steps in zip(*walks, strict=True):
            sizes = [[len(indices) for indices in batches] for _, batches in steps]
            assert [list(plan.batch_sizes) for plan, _ in steps] == sizes
            assert {plan.images for plan, _ in steps} == {sum(map(sum, sizes))}
            assert len({len(own) for own in sizes}) == 1, "a rank waits for a reduction that the others skip"
            own = [one for rank_sizes in sizes for one in rank_sizes]
            # A short step may go over the batch size by a little, where its parts would be too small otherwise.
            assert max(own) <= {1: 2, 2: 4, 3: 4, 8: 8}[batch]
            assert min(own) >= min(batch, 2), "a batch of one cannot teach batch norm"


def test_full_steps_have_full_batches():
    for rank in range(3):
        steps = walk(StepSampler(65, 4, rank, 3, accumulation=2))
        assert [plan.batch_sizes for plan, _ in steps] == [(4, 4), (4, 4), (3, 3) if rank < 2 else (3, 2)]
        assert [plan.images for plan, _ in steps] == [24, 24, 17]


def test_accumulated_batches_of_one_stay_of_one():
    """Whoever asks for one image a batch has no memory for two."""
    (plan,) = StepSampler(50, 1, accumulation=64).plans()
    assert plan.batch_sizes == (1,) * 50


def test_samples_are_dealt_in_turn():
    sampler = StepSampler(24, 4, 1, 3, accumulation=2, seed=5)
    order = sampler.order()
    assert flat(walk(sampler)[0]) == order[1:24:3].tolist()


def test_a_set_smaller_than_a_step_is_one_short_step():
    """R21: three images at a batch of eight."""
    sampler = StepSampler(3, 8)
    assert sampler.steps_in_epoch() == 1
    assert sampler.dropped == 0
    assert [plan for plan, _ in walk(sampler)] == [StepPlan(3, (3,))]
    assert sorted(flat(walk(sampler)[0])) == [0, 1, 2]


def test_a_set_too_small_for_a_step_has_none():
    sampler = StepSampler(3, 8, rank=1, world_size=2)
    assert sampler.steps_in_epoch() == 0
    assert walk(sampler) == []


@pytest.mark.parametrize(("size", "dropped"), [(48, 0), (49, 1), (51, 3), (52, 0), (63, 0)])
def test_a_remainder_of_fewer_than_two_a_rank_is_dropped_and_counted(size: int, dropped: int):
    for sampler in all_ranks(size, 8, 2):
        assert sampler.dropped == dropped
        assert sum(plan.images for plan, _ in walk(sampler)) == size - dropped


def test_max_steps_end_the_epoch_early():
    sampler = StepSampler(100, 8, max_steps=3)
    assert sampler.steps_in_epoch() == 3
    assert sampler.dropped == 0
    assert [flat(step) for step in walk(sampler)] == [sampler.order()[at : at + 8].tolist() for at in (0, 8, 16)]
    longer = StepSampler(17, 8, max_steps=3)
    assert longer.steps_in_epoch() == 2
    assert longer.dropped == 1


def test_starting_inside_an_epoch_gives_the_rest_of_the_same_order():
    for consumed_steps in range(4):
        for rank in range(2):
            whole = StepSampler(97, 4, rank, 2, accumulation=3, seed=7)
            whole.start(5)
            rest = StepSampler(97, 4, rank, 2, accumulation=3, seed=7)
            rest.start(5, 24 * consumed_steps)
            assert walk(rest) == walk(whole)[consumed_steps:]
            assert rest.steps_in_epoch() == whole.steps_in_epoch()
            assert len(rest) == sum(len(plan.batch_sizes) for plan, _ in walk(rest))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("consumed", [16, 48, 96])
def test_another_world_size_inside_an_epoch_deals_the_rest_once(world: int, consumed: int):
    size = 101
    before = [walk(sampler) for sampler in all_ranks(size, 8, 2, (3, 0))]
    seen = sorted(index for step in together(before)[: consumed // 16] for index in step)
    samplers = all_ranks(size, 4, world, (3, consumed))
    after = [index for step in together([walk(sampler) for sampler in samplers]) for index in step]
    left_over = samplers[0].order()[size - samplers[0].dropped :].tolist()
    assert samplers[0].dropped < 2 * world
    assert sorted([*seen, *after, *left_over]) == list(range(size))


def test_the_order_follows_seed_and_epoch_alone():
    """R65."""

    def order(seed: int, epoch: int, *sizes: int) -> list[int]:
        sampler = StepSampler(50, *(sizes or (8,)), seed=seed)
        sampler.start(epoch)
        return sampler.order().tolist()

    assert order(1, 0) == order(1, 0, 5, 1, 3)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1, 2**63 - 1) for epoch in (0, 1, 2)}) == 9
    assert sorted(order(1, 2)) == list(range(50))


def test_the_order_leaves_numpys_global_generator_alone():
    np.random.seed(0)
    expected = np.random.random()
    np.random.seed(0)
    StepSampler(50, 8).order()
    assert np.random.random() == expected


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize(("size", "batch"), [(10, 4), (10, 1), (3, 4), (1, 2), (0, 2)])
def test_validation_takes_each_image_exactly_once(size: int, batch: int, world: int):
    """R63: no padding, no repetition, at one to four ranks."""
    shares = [rank_share(size, batch, rank, world) for rank in range(world)]
    indices = [index for share in shares for keys in share for _, index in keys]
    assert sorted(indices) == list(range(size))
    assert all(0 < len(keys) <= batch for share in shares for keys in share)


@pytest.mark.parametrize("max_steps", [None, 2, 50])
@pytest.mark.parametrize(
    ("size", "batch", "ranks", "accumulation"), [(103, 8, 2, 2), (7, 2, 2, 1), (33, 30, 2, 1), (5, 1, 1, 4)]
)
def test_steps_left_counts_the_plans_from_any_position(size, batch, ranks, accumulation, max_steps):
    sampler = StepSampler(size, batch, 0, ranks, accumulation, max_steps=max_steps)
    for consumed in range(size + 1):
        sampler.start(0, consumed)
        assert sampler.steps_left() == len(list(sampler.plans())), consumed

from __future__ import annotations

import pytest
import torch

from fints.training import BatchOrder


@pytest.mark.parametrize(("number", "size"), [(10, 4), (3, 8), (8, 8), (1, 5), (17, 1)])
def test_batches_are_full_and_joined_epochs_miss_and_repeat_nothing(number, size):
    order = BatchOrder(number, size, seed=5)
    steps = number * 3
    stream = torch.cat([order(step) for step in range(steps)])
    assert len(stream) == steps * size
    for epoch in stream.split(number):
        assert sorted(epoch.tolist()) == list(range(number))


def test_any_step_is_the_same_without_the_steps_before_it():
    order = BatchOrder(10, 4, seed=1)
    batches = [order(step) for step in range(20)]
    for step in (19, 0, 7, 7, 3):
        assert torch.equal(BatchOrder(10, 4, seed=1)(step), batches[step])


def test_the_order_changes_with_the_epoch_and_with_the_seed():
    order = BatchOrder(50, 50, seed=1)
    assert not torch.equal(order(0), order(1))
    assert not torch.equal(order(0), BatchOrder(50, 50, seed=2)(0))


def test_the_callers_generator_neither_moves_nor_is_moved():
    torch.manual_seed(0)
    first = BatchOrder(50, 10, seed=1)(0)
    state = torch.random.get_rng_state()
    torch.manual_seed(9)
    assert torch.equal(BatchOrder(50, 10, seed=1)(0), first)
    torch.manual_seed(0)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_an_empty_training_set_is_refused():
    with pytest.raises(ValueError, match="at least one window; got 0"):
        BatchOrder(0, 4, seed=0)

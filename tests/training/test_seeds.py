from __future__ import annotations

import pytest
import torch

from fints.training import derive, one_thread, threads
from fints.training.seeds import private_stream, reseed

CPU = torch.device("cpu")


def test_a_derived_seed_is_the_same_on_every_machine_for_ever():
    assert derive(0) == 7520536977032167579
    assert derive(7, "batches", 3) == 7020317482137479933


def test_seeds_differ_whenever_a_label_its_kind_or_its_place_does():
    seeds = [
        derive(0, "a", "b"),
        derive(0, "b", "a"),
        derive(0, "ab"),
        derive(0, "a", 1),
        derive(0, "a", "1"),
        derive(1, "a", 1),
        derive(0),
        derive(-1),
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("part", [1.0, True, None])
def test_a_label_that_has_no_stable_text_is_refused(part):
    with pytest.raises(ValueError, match="whole numbers and texts; got"):
        derive(0, part)


def test_the_number_of_threads_is_put_back_even_after_an_error():
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(ZeroDivisionError), threads(before + 1):
        _ = 1 / 0
    assert torch.get_num_threads() == before


def test_a_private_stream_leaves_the_callers_numbers_alone():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with private_stream(CPU):
        reseed(11, CPU)
        inside = torch.rand(4)
    assert torch.equal(torch.rand(4), expected)
    assert torch.equal(inside, torch.rand(4, generator=torch.Generator().manual_seed(11)))

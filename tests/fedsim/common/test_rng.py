from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.rng import BLOCK, Draws, Streams, expanded, key, rng, torch_seed


def test_equal_arguments_give_equal_draws_and_any_change_gives_other_draws() -> None:
    draws = {
        name: rng(*arguments).integers(2**63, size=4).tolist()
        for name, arguments in {
            "same": (1, "batches", 3, 5),
            "again": (1, "batches", 3, 5),
            "seed": (2, "batches", 3, 5),
            "purpose": (1, "select", 3, 5),
            "ids": (1, "batches", 35),
            "order": (1, "batches", 5, 3),
        }.items()
    }
    assert draws["same"] == draws["again"]
    assert len({tuple(d) for d in draws.values()}) == 5


def test_the_key_does_not_change_between_versions() -> None:
    """A golden value: changing it would change every published digest."""
    assert key(1, "batches", 3, 5) == 65752689941298957385422311591137739133
    assert key(1, "batches", np.int64(3), 5) == key(1, "batches", 3, 5)


def test_torch_seeds_fit_into_63_bits() -> None:
    assert all(0 <= torch_seed(s, "init") < 2**63 for s in range(200))


def test_draws_are_a_function_of_seed_purpose_and_ids() -> None:
    draws, again, other = Draws(1, "select"), Draws(1, "select"), Draws(2, "select")
    first = draws.at(5).random(3).tolist()
    draws.at(6).integers(10)
    assert draws.at(5).random(3).tolist() == first == again.at(5).random(3).tolist()
    assert other.at(5).random(3).tolist() != first != draws.at(7).random(3).tolist()


def test_draws_are_uniform() -> None:
    draws = Draws(3, "select")
    first = np.array([draws.at(i).random() for i in range(4000)])
    assert abs(first.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.05


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**80), purpose=st.text(max_size=20), number=st.integers(0, 2**40))
def test_a_stream_is_the_generator_of_its_seed_purpose_and_id(seed: int, purpose: str, number: int) -> None:
    """State and increment decide about all draws."""
    found = Streams(seed).at(purpose, number)
    assert found.bit_generator.state == rng(seed, purpose, number).bit_generator.state


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**128 - 1), min_size=1, max_size=5))
def test_keys_are_expanded_as_by_numpys_seed_sequence(keys: list[int]) -> None:
    keys += [0, 1, 2**32, 2**96, 2**128 - 1]
    words = [[key >> 32 * i & 0xFFFFFFFF for i in range(4)] for key in keys]
    expected = [np.random.SeedSequence(key).generate_state(4, np.uint64) for key in keys]
    np.testing.assert_array_equal(expanded(np.array(words, dtype=np.uint32)), expected)


def test_streams_are_independent_and_start_from_the_beginning_each_time() -> None:
    streams = Streams(1)
    first, other = streams.at("faults", BLOCK - 1), streams.at("faults", BLOCK)
    draws = first.random(3).tolist()
    assert other.random(3).tolist() != draws
    assert streams.at("faults", BLOCK - 1).random(3).tolist() == draws
    assert streams.at("client", BLOCK - 1).random(3).tolist() != draws


@pytest.mark.parametrize("seed", [7, np.int64(7)])
def test_seeds_of_any_integer_type_are_alike(seed: int) -> None:
    assert Streams(seed).at("x", 3).random() == rng(7, "x", 3).random()

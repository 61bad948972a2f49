from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.rng import rng
from fedsim.common.rng_streams import BLOCK, Streams, spread


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**80), purpose=st.text(max_size=20), number=st.integers(0, 2**40))
def test_a_stream_is_the_generator_of_its_seed_purpose_and_id(seed: int, purpose: str, number: int) -> None:
    """State and increment decide about all draws."""
    found = Streams(seed).at(purpose, number)
    assert found.bit_generator.state == rng(seed, purpose, number).bit_generator.state


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**128 - 1), min_size=1, max_size=5))
def test_keys_are_spread_as_by_the_seed_sequence(keys: list[int]) -> None:
    keys += [0, 1, 2**32, 2**96, 2**128 - 1]
    words = [[key >> 32 * i & 0xFFFFFFFF for i in range(4)] for key in keys]
    expected = [np.random.SeedSequence(key).generate_state(4, np.uint64) for key in keys]
    np.testing.assert_array_equal(spread(np.array(words, dtype=np.uint32)), expected)


def test_streams_are_independent_of_each_other_and_start_anew_each_time() -> None:
    streams = Streams(1)
    first, other = streams.at("faults", BLOCK - 1), streams.at("faults", BLOCK)
    draws = first.random(3).tolist()
    assert other.random(3).tolist() != draws
    assert streams.at("faults", BLOCK - 1).random(3).tolist() == draws
    assert streams.at("client", BLOCK - 1).random(3).tolist() != draws


@pytest.mark.parametrize("seed", [7, np.int64(7)])
def test_seeds_of_any_integer_type_are_alike(seed: int) -> None:
    assert Streams(seed).at("x", 3).random() == rng(7, "x", 3).random()

"""Rules of columns against the definitions of Yin et al. 2018, number by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rule_calls import combine
from stacks import assert_same, seeds, updates

fast = settings(max_examples=60, deadline=None)


def median(rows: Any, **given: Any) -> Any:
    return combine("coordinate_median", rows, losses=None, **given).direction


@fast
@given(seeds, st.integers(1, 12))
def test_each_entry_is_the_median_of_the_updates(seed: int, m: int) -> None:
    """Definition 1: the one-dimensional median in each coordinate; of an even number the mean of the middle two."""
    rows = updates(seed, m, 9)
    expected = []
    for column in rows.T.tolist():
        ascending = sorted(column)
        middle = ascending[(m - 1) // 2], ascending[m // 2]
        expected.append(sum(middle) / 2)
    np.testing.assert_allclose(median(rows), expected, rtol=1e-15)


@pytest.mark.parametrize("m", [3, 4, 9])
def test_samples_do_not_count(m: int) -> None:
    rows = updates(0, m, 5)
    assert_same(median(rows, n_samples=np.arange(1, m + 1)), median(rows))


def test_two_updates_of_a_client_count_twice() -> None:
    assert median(np.array([[1.0], [2.0], [9.0], [9.0]]), clients=[0, 1, 2, 2]).tolist() == [5.5]

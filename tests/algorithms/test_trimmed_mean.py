"""The trimmed mean against the definition of Yin et al. 2018, number by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError
from rule_calls import combine
from stacks import assert_same, seeds, updates

fast = settings(max_examples=60, deadline=None)


def trimmed(rows: Any, **given: Any) -> Any:
    return combine("trimmed_mean", rows, losses=None, **given).direction


@fast
@given(seeds, st.integers(1, 20), st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.45]))
def test_each_entry_is_the_mean_without_the_ends(seed: int, m: int, beta: float) -> None:
    """Definition 2: the largest and the smallest β fraction of the elements are removed in each coordinate."""
    rows = updates(seed, m, 9)
    b = {0.0: 0, 0.1: m // 10, 0.25: m // 4, 0.3: 3 * m // 10, 0.45: 9 * m // 20}[beta]
    expected = []
    for column in rows.T.tolist():
        kept = sorted(column)[b : m - b]
        expected.append(sum(kept) / len(kept))
    np.testing.assert_allclose(trimmed(rows, beta=beta), expected, rtol=1e-12, atol=1e-14)


def test_the_default_is_a_tenth() -> None:
    rows = updates(1, 20, 9)
    assert_same(trimmed(rows), np.sort(rows, axis=0)[2:18].mean(axis=0))


@pytest.mark.parametrize(
    ("m", "beta", "trims"), [(100, 0.29, 29), (1000, 0.007, 7), (10, 0.3, 3), (3, 1 / 3, 1)]
)
def test_a_whole_number_of_values_is_trimmed_in_spite_of_rounding(m: int, beta: float, trims: int) -> None:
    rows = np.ones((m, 1))
    rows[:trims] = 1e6
    assert trimmed(rows, beta=beta).tolist() == [1.0]
    rows[trims] = 1e6
    assert trimmed(rows, beta=beta)[0] > 1.0


@fast
@given(seeds, st.integers(1, 15))
def test_between_mean_and_median(seed: int, m: int) -> None:
    rows = updates(seed, m, 9)
    assert_same(trimmed(rows, beta=0.0), rows.mean(axis=0))
    if m % 2:
        assert_same(trimmed(rows, beta=(m - 1) / 2 / m), np.median(rows, axis=0))
    assert_same(trimmed(rows, beta=np.nextafter(0.5, 0)), np.median(rows, axis=0))


@pytest.mark.parametrize("beta", [-0.1, 0.5, 1.0])
def test_a_share_of_a_half_or_more_is_refused(beta: float) -> None:
    with pytest.raises(ConfigError, match="beta"):
        trimmed(np.ones((3, 2)), beta=beta)

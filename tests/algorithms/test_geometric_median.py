"""RFA against the authors' algorithm on vectors, and what a median of vectors must do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rule_calls import combine
from stacks import Rows, assert_same, seeds, updates

fast = settings(max_examples=60, deadline=None)


def median(rows: Any, **given: Any) -> Any:
    return combine("geometric_median", rows, losses=None, **given).direction


def objective(point: Rows, rows: Rows, alpha: Rows) -> float:
    return float(sum(a * np.linalg.norm(point - row) for a, row in zip(alpha, rows, strict=True)))


def rfa(rows: Rows, alpha: Rows, nu: float, iterations: int, tolerance: float) -> Rows:
    """Return the smoothed Weiszfeld algorithm's point, vector by vector."""
    point = np.asarray(sum(a * row for a, row in zip(alpha, rows, strict=True)))
    value = objective(point, rows, alpha)
    for _ in range(iterations):
        before = value
        beta = [a / max(nu, float(np.linalg.norm(point - row))) for a, row in zip(alpha, rows, strict=True)]
        point = np.asarray(sum(b * row for b, row in zip(beta, rows, strict=True)) / sum(beta))
        value = objective(point, rows, alpha)
        if abs(before - value) < tolerance * value:
            break
    return point


@fast
@given(
    seeds,
    st.integers(1, 10),
    st.sampled_from([1e-5, 0.5, 30.0]),
    st.integers(0, 8),
    st.sampled_from([0, 1e-6, 0.05]),
)
@pytest.mark.parametrize("weighting", ["data", "uniform"])
def test_it_is_the_algorithm_on_vectors(
    weighting: str, seed: int, m: int, nu: float, iterations: int, tolerance: float
) -> None:
    rows, n_samples = updates(seed, m, 12), np.random.default_rng(seed).integers(1, 50, m)
    alpha = n_samples / n_samples.sum() if weighting == "data" else np.full(m, 1 / m)
    options = {"nu": nu, "iterations": iterations, "tolerance": tolerance}
    found = median(rows, n_samples=n_samples, weighting=weighting, **options)
    assert_same(found, rfa(rows, alpha, **options), 1e-6)


def test_the_defaults_are_those_of_the_authors() -> None:
    rows, n_samples = updates(3, 9, 12), np.arange(1, 10)
    expected = rfa(rows, n_samples / n_samples.sum(), nu=1e-5, iterations=4, tolerance=1e-6)
    assert_same(median(rows, n_samples=n_samples), expected)


@fast
@given(seeds, st.integers(2, 10))
def test_the_sum_of_distances_never_rises(seed: int, m: int) -> None:
    rows, alpha = updates(seed, m, 12), np.full(m, 1 / m)
    values = [objective(median(rows, iterations=k, tolerance=0), rows, alpha) for k in range(8)]
    assert (np.diff(values) <= 1e-9 * values[0]).all()


def test_it_is_where_the_unit_vectors_to_the_updates_balance() -> None:
    rows = updates(1, 8, 5, common=3.0)
    point = median(rows, iterations=3000, tolerance=0, nu=1e-9)
    pulls = (rows - point) / np.linalg.norm(rows - point, axis=1, keepdims=True)
    assert np.linalg.norm(pulls.mean(axis=0)) < 1e-6


@pytest.mark.parametrize("length", [1e2, 1e4, 1e6])
def test_a_far_update_fades_by_the_number_of_the_others_in_each_iteration(length: float) -> None:
    rows = np.zeros((6, 3))
    rows[0] = length
    for k in range(1, 4):
        share = median(rows, iterations=k, tolerance=0)[0] / length
        assert share == pytest.approx(1 / (6 * 5**k), rel=0.25)


def test_a_client_with_most_of_the_samples_has_its_way_unless_clients_count_equally() -> None:
    rows, options = np.diag([1.0, 2.0, 3.0]), {"iterations": 500, "tolerance": 0}
    assert_same(median(rows, n_samples=[10, 1, 1], **options), rows[0], 1e-3)
    assert np.linalg.norm(median(rows, n_samples=[10, 1, 1], weighting="uniform", **options) - rows[0]) > 0.1

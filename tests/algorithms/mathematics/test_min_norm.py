"""The minimum-norm point: optimality conditions on ordinary, degenerate and badly scaled hulls."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsim.algorithms.mathematics import min_norm as _qp
from fedsim.algorithms.mathematics import min_norm_start as _qp_start
from fedsim.algorithms.mathematics.min_norm import min_norm
from fedsim.common.errors import SolverError
from stacks import seeds, updates

fast = settings(max_examples=80, deadline=None)


def assert_optimal(rows: NDArray[np.float64], weights: NDArray[np.float64], tolerance: float = 1e-10) -> None:
    """v_i·d >= d·d for all rows, with equality where the weight is positive."""
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    d = weights @ rows
    slack = (rows @ d - d @ d) / (rows**2).sum(axis=1).max()
    assert slack.min() >= -tolerance
    assert np.abs(slack[weights > 0]).max() <= tolerance


@fast
@given(seeds, st.integers(1, 25), st.integers(1, 40), st.floats(0, 3))
def test_weights_satisfy_the_optimality_conditions(seed: int, n: int, d: int, common: float) -> None:
    rows = updates(seed, n, d, common)
    weights, residual = min_norm(rows @ rows.T)
    assert residual <= 1e-14
    assert_optimal(rows, weights, 1e-13)


@fast
@given(seeds, st.integers(1, 12), st.integers(1, 6))
def test_point_is_no_longer_than_any_other_of_the_hull(seed: int, n: int, d: int) -> None:
    rows = updates(seed, n, d)
    point = np.linalg.norm(min_norm(rows @ rows.T)[0] @ rows)
    others = np.random.default_rng(seed).dirichlet(np.ones(n), size=20) @ rows
    every = np.vstack([others, rows, rows.mean(axis=0)])
    assert point <= np.linalg.norm(every, axis=1).min() + 1e-7 * np.abs(rows).max()


@fast
@given(seeds, st.integers(2, 10), st.integers(1, 5))
def test_point_is_zero_when_the_hull_contains_zero(seed: int, n: int, d: int) -> None:
    rows = updates(seed, n, d)
    rows[-1] = -np.random.default_rng(seed).dirichlet(np.ones(n - 1)) @ rows[:-1]
    weights, _ = min_norm(rows @ rows.T)
    assert np.linalg.norm(weights @ rows) <= 1e-7 * np.linalg.norm(rows, axis=1).max()


@fast
@given(seeds, st.integers(1, 30))
def test_two_rows_have_the_closed_form(seed: int, d: int) -> None:
    one, two = updates(seed, 2, d)
    rows = np.stack([one, two])
    weights, _ = min_norm(rows @ rows.T)
    first = np.clip((two - one) @ two / ((one - two) @ (one - two)), 0, 1)
    np.testing.assert_allclose(weights, [first, 1 - first], atol=1e-9)


@fast
@given(seeds, st.integers(1, 15), st.integers(1, 20), st.floats(-30, 30))
def test_point_scales_with_the_rows(seed: int, n: int, d: int, exponent: float) -> None:
    rows, factor = updates(seed, n, d), 10.0**exponent
    plain, scaled = (min_norm(r @ r.T)[0] @ rows for r in (rows, rows * factor))
    assert np.linalg.norm(plain - scaled) <= 1e-7 * np.abs(rows).max()


DEGENERATE = {
    "one row": np.array([[3.0, 4.0]]),
    "equal rows": np.ones((4, 3)),
    "opposite pair": np.array([[1.0, -2.0, 0.5], [-1.0, 2.0, -0.5]]),
    "a zero row": np.array([[1.0, 2.0], [0.0, 0.0], [2.0, 1.0]]),
    "only zero rows": np.zeros((3, 2)),
    "collinear": np.outer([1.0, 2.0, 5.0], [3.0, 4.0]),
    "nearly equal rows": np.ones((3, 4)) + 1e-9 * np.eye(3, 4),
    "twelve decades": np.diag(10.0 ** -np.arange(12.0)),
    "simplex": np.eye(7),
}


@pytest.mark.parametrize("rows", DEGENERATE.values(), ids=DEGENERATE.keys())
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_degenerate_hulls_are_solved(rows: NDArray[np.float64], scale: float) -> None:
    weights, residual = min_norm(rows @ rows.T * scale)
    assert residual <= 1e-14
    if rows.any():
        assert_optimal(rows, weights, 1e-13)


@pytest.mark.parametrize(("n", "d"), [(300, 1000), (300, 40), (64, 64), (200, 205)])
def test_many_rows(n: int, d: int) -> None:
    rows = updates(7, n, d, 1.0)
    weights, residual = min_norm(rows @ rows.T)
    assert residual <= 1e-13
    assert_optimal(rows, weights, 1e-12)


@pytest.mark.parametrize(("n", "common"), [(20, 0.0), (300, 0.0), (300, 1.0)])
@pytest.mark.parametrize("depends", [False, True], ids=["independent", "one is the mean of others"])
def test_rows_of_all_lengths(n: int, common: float, depends: bool) -> None:
    """The shortest row bounds the point, so longer ones must be looked at in its scale."""
    lengths = 10.0 ** np.random.default_rng(n).uniform(-7, 0, n)
    rows = updates(5, n, 1000, common)
    rows *= (lengths / np.linalg.norm(rows, axis=1))[:, None]
    if depends:
        rows = np.vstack([rows, rows[:10].mean(axis=0)])
    weights, residual = min_norm(rows @ rows.T)
    assert residual <= 1e-13
    point = weights @ rows
    norm = np.linalg.norm(point)
    assert (rows @ point >= norm**2 - 1e-7 * norm * np.linalg.norm(rows, axis=1)).all()
    held = rows[weights > 0]
    off = np.abs(held @ point - norm**2) / (norm * np.linalg.norm(held, axis=1))
    assert off.max() <= 1e-7


@fast
@given(seeds, st.integers(1, 40), st.integers(0, 40), st.floats(0, 3))
def test_both_starts_find_the_same_point(seed: int, n: int, more: int, common: float) -> None:
    rows = updates(seed, n, n + more, common)
    gram = rows @ rows.T / (rows**2).sum(axis=1).max()
    pivoted, one_by_one = _qp_start.pivoted(gram + 1.0, np.ones(n)), _qp_start.one_by_one(gram)
    assert pivoted is not None
    pivoted /= pivoted.sum()
    assert_optimal(rows, pivoted, 1e-8)
    np.testing.assert_allclose(pivoted @ rows, one_by_one @ rows, atol=1e-6 * np.abs(rows).max())


def test_pivoting_leaves_singular_matrices_to_the_other_start() -> None:
    rows = updates(3, 100, 20)
    assert _qp_start.pivoted(rows @ rows.T + 1.0, np.ones(100)) is None
    weights, residual = min_norm(rows @ rows.T)
    assert residual <= 1e-13
    assert_optimal(rows, weights, 1e-12)


@fast
@given(seeds, st.integers(2, 30), st.integers(1, 12))
def test_gram_of_float32_products_is_solved(seed: int, n: int, d: int) -> None:
    rows = updates(seed, n, d).astype(np.float32)
    weights, _ = min_norm((rows @ rows.T).astype(np.float64))
    assert_optimal(rows.astype(np.float64), weights, 1e-5)


@fast
@given(seeds, st.integers(2, 12), st.integers(1, 15), st.floats(0, 1))
def test_bounded_weights_are_optimal_within_their_bounds(seed: int, n: int, d: int, epsilon: float) -> None:
    rows = updates(seed, n, d)
    lower, upper = max(0.0, 1 / n - epsilon), min(1.0, 1 / n + epsilon)
    weights, residual = min_norm(rows @ rows.T, lower=lower, upper=upper)
    assert residual <= 1e-13
    assert lower - 1e-15 <= weights.min() <= weights.max() <= upper + 1e-15
    level = rows @ (weights @ rows)
    rises, falls = level[weights < upper - 1e-9], level[weights > lower + 1e-9]
    if len(rises) and len(falls):
        assert falls.max() - rises.min() <= 1e-9 * (rows**2).sum(axis=1).max()


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, [100 / 101, 1 / 101]),
        ({"lower": 0.3}, [0.7, 0.3]),
        ({"upper": 0.6}, [0.6, 0.4]),
        ({"lower": 0.1, "upper": 0.95}, [0.9, 0.1]),
    ],
)
def test_a_bound_holds_with_and_without_the_other(bounds: dict[str, float], expected: list[float]) -> None:
    assert min_norm(np.diag([1.0, 100.0]), **bounds)[0] == pytest.approx(expected)


def test_interior_point_reference_agrees() -> None:
    for seed, n, d in [(0, 5, 30), (1, 8, 4), (2, 3, 3)]:
        rows = updates(seed, n, d)
        gram = rows @ rows.T
        for bounds in ({}, {"lower": 0.02, "upper": 0.4}):
            direct, reference = (min_norm(gram, solver=s, **bounds)[0] for s in ("direct", "cvxpy"))
            np.testing.assert_allclose(direct @ rows, reference @ rows, atol=1e-4 * np.abs(rows).max())
            assert direct @ gram @ direct <= reference @ gram @ reference * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize(
    ("gram", "message"),
    [
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "NaN or infinity in row 0"),
        (np.array([[1.0, 0.0], [0.0, -1.0]]), "squared norms on the diagonal, found -1"),
        (np.ones((2, 3)), r"square Gram matrix, found shape \(2, 3\)"),
        (np.array([[1.0, 3.0, -3.0], [3.0, 1.0, 3.0], [-3.0, 3.0, 1.0]]), r"relative eigenvalue of -5"),
    ],
)
def test_what_is_no_gram_matrix_is_refused_and_carried(gram: NDArray[np.float64], message: str) -> None:
    with pytest.raises(SolverError, match=message) as caught:
        min_norm(gram)
    assert caught.value.matrix is gram


def test_impossible_bounds_are_refused() -> None:
    with pytest.raises(SolverError, match=r"upper bounds of sum 0\.6"):
        min_norm(np.eye(3), upper=0.2)
    with pytest.raises(SolverError, match="expected bounds 0 <= lower"):
        min_norm(np.eye(3), lower=[0.2, -0.1, 0.2])


def test_a_solve_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of several threads would have other bits on a machine with another number of cores."""
    seen: list[int] = []

    class Blas:
        def limit(self, limits: int) -> AbstractContextManager[None]:
            seen.append(limits)
            return nullcontext()

    monkeypatch.setattr(_qp, "_blas", Blas)
    min_norm(np.eye(3))
    assert seen == [1]


def test_a_wrong_solution_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_qp, "_active_set", lambda g, low, high: np.full(len(g), 1 / len(g)))
    gram = np.diag([1.0, 2.0])
    with pytest.raises(SolverError, match="KKT residual") as caught:
        min_norm(gram)
    assert caught.value.matrix is gram

"""Geometry by Gram matrices against the same on the vectors themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsim.algorithms.mathematics import geometry
from fedsim.algorithms.mathematics.blocks import Part, Solve, first_zero, merged, weights_by_block
from fedsim.server.rule import Floats

ROWS = np.array([[3.0, 0, 1, 0], [0, 4, 0, 1], [-1, 1, 2, 2]])
BLOCKS = (slice(0, 2), slice(2, 4))
GRAMS = np.stack([ROWS[:, b] @ ROWS[:, b].T for b in BLOCKS])
TABLE = np.array([[0.5, -1.0, 2.0], [1.0, 0.25, -0.5]])
VECTOR = np.concatenate([w @ ROWS[:, b] for w, b in zip(TABLE, BLOCKS, strict=True)])


def vector(table: Floats) -> Floats:
    return np.concatenate([w @ ROWS[:, b] for w, b in zip(table, BLOCKS, strict=True)])


def test_products_and_norms_are_those_of_the_vectors() -> None:
    assert geometry.inner_with_rows(TABLE, GRAMS) == pytest.approx(ROWS @ VECTOR)
    assert geometry.norm(TABLE, GRAMS) == pytest.approx(np.linalg.norm(VECTOR))
    assert geometry.mean_of_present(3, 2).tolist() == [0.5, 0.5, 0.0]
    terms = [
        (np.abs(w) * np.linalg.norm(ROWS[:, b], axis=1)).sum() for w, b in zip(TABLE, BLOCKS, strict=True)
    ]
    assert geometry.bound(TABLE, GRAMS) == pytest.approx(math.hypot(*terms))


def test_a_vector_is_stretched_to_a_length_from_which_the_guard_takes() -> None:
    assert np.linalg.norm(vector(geometry.of_length(TABLE, GRAMS, 7.0))) == pytest.approx(7)
    size = np.linalg.norm(VECTOR)
    guarded = vector(geometry.of_length(TABLE, GRAMS, 7.0, guard=0.5))
    assert guarded == pytest.approx(VECTOR * 7 / (size + 0.5))
    mean = vector(geometry.as_long_as_mean(TABLE, GRAMS, 2))
    assert np.linalg.norm(mean) == pytest.approx(np.linalg.norm(ROWS[:2].mean(axis=0)))


def test_what_is_rounding_is_stretched_to_nothing() -> None:
    cancelled = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    opposite = np.stack([np.outer([1, -1, 0], [1, -1, 0]).astype(float), np.zeros((3, 3))])
    opposite[0, 0, 0] += 1e-16
    assert not geometry.of_length(cancelled, opposite, 1.0).any()
    one = np.stack([np.eye(1)])
    assert not geometry.of_length(np.array([[1e-12]]), one, 1.0).any()
    assert geometry.of_length(np.array([[1.1e-12]]), one, 1.0).item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("inner", "stretch", "expected"),
    [
        (-1e-3, 16.0, 1.0),  # halved until it is at most twice as long, then as before
        (2.0, 16.0, 16.0),  # no conflict
        (-4e-7, 2.5, 2.5),  # -1e-6 is no conflict
        (-4e-7, 4.0, 2.0),  # -1.6e-6 is one, half of it is none
        (-1e-3, 2.0, 1.0),
    ],
)
def test_a_conflict_halves_what_was_stretched(inner: float, stretch: float, expected: float) -> None:
    """Two rows: the vector itself, of length 1, and one whose product with it is `inner`."""
    grams = np.array([[[1.0, inner], [inner, 1.0]]])
    plain = np.array([[1.0, 0.0]])
    found = geometry.shortened(stretch * plain, plain, grams, np.array([1]))
    assert found[0, 0] == expected


def test_fair_weights_are_the_derivative_of_the_cosine() -> None:
    losses, h = np.array([0.3, 1.7, 0.9, 1.0]), 1e-6

    def minus_cosine(f: Floats) -> float:
        return -float(f.sum() / (np.linalg.norm(f) * math.sqrt(len(f))))

    slopes = [(minus_cosine(losses + h * e) - minus_cosine(losses - h * e)) / (2 * h) for e in np.eye(4)]
    assert geometry.fair_weights(losses) == pytest.approx(slopes, rel=1e-6)
    assert geometry.fair_weights(1e-200 * losses) == pytest.approx(1e200 * np.array(slopes), rel=1e-6)
    unit = geometry.unit_fair_weights(losses)
    assert unit == pytest.approx(np.array(slopes) / np.linalg.norm(slopes), rel=1e-6)


@pytest.mark.parametrize("losses", [[0.0, 0.0], [2.0, 2.0], [1.0, 1.0 + 1e-13], [3.0]])
def test_equal_losses_ask_for_nothing(losses: list[float]) -> None:
    assert not geometry.fair_weights(np.array(losses)).any()
    assert not geometry.unit_fair_weights(np.array(losses)).any()


def test_nearly_equal_losses_still_ask_for_something() -> None:
    assert geometry.fair_weights(np.array([1.0, 1.0 + 1e-11])).any()


def test_a_row_that_is_zero_has_no_inverse_norm() -> None:
    assert geometry.inverse_norms(np.diag([4.0, 0.0, 0.25, -1e-30])).tolist() == [0.5, 0.0, 2.0, 0.0]


@pytest.mark.parametrize("scale", [1e-100, 1.0, 1e100])
def test_distances_are_those_of_the_vectors(scale: float) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 8)) * scale
    gram, point = rows @ rows.T, np.array([0.5, -1.0, 0.0, 2.0, 0.25])
    expected = ((rows[:, None] - rows) ** 2).sum(axis=2)
    np.testing.assert_allclose(geometry.squared_distances(gram), expected, rtol=1e-12, atol=0)
    expected = np.linalg.norm(rows - point @ rows, axis=1)
    np.testing.assert_allclose(geometry.distances_to(point, gram), expected, rtol=1e-12)


def test_distances_are_the_same_in_both_directions_in_spite_of_rounding() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 8))
    rounded = (rows @ rows.T) * (1 + 1e-15 * np.arange(25).reshape(5, 5))
    distances = geometry.squared_distances(rounded)
    np.testing.assert_array_equal(distances, distances.T)


def test_distances_of_vectors_that_are_equal_up_to_rounding_are_zero() -> None:
    rows = np.tile(np.random.default_rng(1).normal(size=8), (4, 1))
    rows[1:3] *= 1 + np.array([[1e-9], [-1e-9]])
    rows[3] *= 1 + 1e-4
    gram = rows @ rows.T
    np.testing.assert_array_equal(
        geometry.squared_distances(gram) > 0, np.arange(4)[:, None] // 3 != np.arange(4) // 3
    )
    assert (geometry.distances_to(np.array([0.5, 0.5, 0, 0]), gram) > 0).tolist() == [
        False,
        False,
        False,
        True,
    ]


def _first_row(gram: Floats, first: int, width: int) -> Part:
    """Solve a block by its first row alone."""
    return Part(gram, np.array([1.0, 0.0]), first, width)


def _solved(grams: Floats, solve: Solve, tolerance: float) -> list[Part]:
    parts = [solve(gram, index, 1) for index, gram in enumerate(grams)]
    while (zero := first_zero(parts, tolerance)) is not None:
        parts = merged(parts, zero, solve)
    return parts


@pytest.mark.parametrize(("apart", "joined"), [(4e-16, True), (1e-10, False)])
def test_a_block_whose_solution_is_rounding_is_zero_without_a_tolerance(apart: float, joined: bool) -> None:
    """Two opposite rows of length 1 whose mean has the norm 1e-8, and 5e-6."""
    opposite = np.array([[1.0, -1.0], [-1.0, 1.0 + apart]])

    def mean(gram: Floats, first: int, width: int) -> Part:
        return Part(gram, np.array([0.5, 0.5]), first, width)

    assert (len(_solved(np.stack([opposite, np.eye(2)]), mean, 0.0)) == 1) is joined


def _joined(zero: list[bool], tolerance: float = 0.0) -> list[tuple[int, int]]:
    grams = np.stack([np.diag([0.0 if z else 1.0, 1.0]) for z in zero])
    parts = _solved(grams, _first_row, tolerance)
    assert weights_by_block(parts).shape == (len(zero), 2)
    return [(part.first, part.width) for part in parts]


@pytest.mark.parametrize(
    ("zero", "expected"),
    [
        ([False, False], [(0, 1), (1, 1)]),
        ([True, False, False], [(0, 2), (2, 1)]),
        ([False, True, False], [(0, 1), (1, 2)]),
        ([False, False, True], [(0, 1), (1, 2)]),
        ([True, True, False], [(0, 3)]),
        ([False, False, True, False], [(0, 1), (1, 1), (2, 2)]),
        ([True, True], [(0, 2)]),
        ([True], [(0, 1)]),
    ],
)
def test_a_block_that_is_zero_joins_the_next_the_last_the_one_before(
    zero: list[bool], expected: list[tuple[int, int]]
) -> None:
    assert _joined(zero) == expected

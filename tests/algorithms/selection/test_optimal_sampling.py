"""Optimal sampling: its probabilities against the paper's formula and against others, and systematic draws."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.algorithms.selection.optimal_sampling import optimal_chances
from fedsim.algorithms.selection.parts.draws import systematic
from views import lookup, make, shares, stated, view

importances = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=9)
QUICK = settings(max_examples=100, deadline=None)


def of_the_paper(norms: list[float], m: int) -> list[float]:
    """The probabilities by the definition of l, tried from the largest."""
    n, ascending = len(norms), sorted(norms)
    for l in range(n, 0, -1):  # noqa: E741  # the paper's letter
        if 0 < m + l - n <= sum(ascending[:l]) / ascending[l - 1]:
            scale = (m + l - n) / sum(ascending[:l])
            smallest = sorted(range(n), key=lambda k: norms[k])[:l]
            return [scale * norms[k] if k in smallest else 1.0 for k in range(n)]
    raise AssertionError("there is always an l")


@given(norms=st.lists(st.floats(0.01, 100), min_size=1, max_size=9), data=st.data())
@QUICK
def test_probabilities_are_those_of_the_paper(norms: list[float], data: st.DataObject) -> None:
    m = data.draw(st.integers(1, len(norms)))
    np.testing.assert_allclose(optimal_chances(np.array(norms), m), of_the_paper(norms, m), rtol=1e-9)


@given(norms=importances, data=st.data())
@QUICK
def test_probabilities_add_up_to_the_places(norms: list[float], data: st.DataObject) -> None:
    m = data.draw(st.integers(1, len(norms)))
    chances = optimal_chances(np.array(norms), m)
    assert chances.sum() == pytest.approx(m, rel=1e-9)
    assert ((chances >= 0) & (chances <= 1)).all()
    by_norm = chances[np.argsort(norms, kind="stable")]
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(by_norm)), "a longer update is never less likely"


def test_no_other_probabilities_have_a_smaller_variance() -> None:
    """Σ u² (1 - π) / π over all π that add up to m, tried at random."""
    draw = np.random.default_rng(1)
    for m in (1, 2, 4):
        u = draw.lognormal(0, 1, size=6)
        best = optimal_chances(u, m)
        for _ in range(2000):
            other = draw.dirichlet(np.full(6, draw.uniform(0.3, 3))) * m
            if (other <= 1).all():
                assert (u**2 * (1 - best) / best).sum() <= (u**2 * (1 - other) / other).sum() * (1 + 1e-9)


def test_equal_norms_are_uniform_and_a_huge_one_is_certain() -> None:
    np.testing.assert_allclose(optimal_chances(np.full(8, 3.0), 2), 0.25)
    assert optimal_chances(np.array([1.0, 1.0, 1e9, 1.0]), 2).tolist() == pytest.approx(
        [1 / 3, 1 / 3, 1, 1 / 3]
    )
    assert optimal_chances(np.zeros(4), 1).tolist() == [0.25] * 4
    assert optimal_chances(np.array([0.0, 5.0, 0.0]), 2).tolist() == [0.5, 1.0, 0.5]


# Draws


def test_systematic_draws_have_exactly_their_chances() -> None:
    """By enumeration: all orders of three clients, and the point on a fine grid."""

    class Fixed:
        def __init__(self, order: list[int], point: float) -> None:
            self.order, self.point = order, point

        def permutation(self, places: np.ndarray) -> np.ndarray:
            return places[self.order]

        def random(self) -> float:
            return self.point

    chances, grid = np.array([0.5, 0.7, 0.8]), 1000
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        count = np.zeros(3)
        for i in range(grid):
            fixed = Fixed(order, (i + 0.5) / grid)
            choice = systematic(np.array([4, 6, 9]), chances, fixed)  # type: ignore[arg-type]
            assert len(set(choice.clients.tolist())) == 2
            count[np.searchsorted([4, 6, 9], choice.clients)] += 1
        np.testing.assert_allclose(count / grid, chances, atol=1.5 / grid)


@given(norms=importances, data=st.data(), seed=st.integers(0, 99))
@QUICK
def test_systematic_draws_always_fill_the_places(norms: list[float], data: st.DataObject, seed: int) -> None:
    m = data.draw(st.integers(1, len(norms)))
    chances = optimal_chances(np.array(norms), m)
    choice = systematic(np.arange(len(norms)), chances, np.random.default_rng(seed))
    assert len(set(choice.clients.tolist())) == len(choice) == m
    np.testing.assert_allclose(choice.inclusion, chances[choice.clients], rtol=1e-6)
    assert (choice.inclusion > 0).all(), "a client without a chance is never drawn"


# The selector


def test_it_draws_by_norm_and_share_of_samples() -> None:
    norms, sizes = np.array([1.0, 2.0, 4.0, 4.0]), np.array([40, 10, 10, 20])
    seen = view(4, n_samples=sizes, update_norms=lookup(norms))
    expected = optimal_chances(norms * sizes, 2)
    np.testing.assert_allclose(
        shares(make("optimal_sampling", floor=0.0), seen, 2, 10_000), expected, atol=0.02
    )
    floor = make("optimal_sampling", floor=0.4)
    np.testing.assert_allclose(shares(floor, seen, 2, 10_000), 0.6 * expected + 0.4 * 0.5, atol=0.02)
    equal = make("optimal_sampling", floor=0.0, weights="uniform")
    choice, _ = stated(equal, seen, 2)
    np.testing.assert_allclose(choice.inclusion, optimal_chances(norms, 2)[choice.clients])


def test_it_takes_losses_where_it_is_told_to() -> None:
    losses = np.array([1.0, 2.0, np.nan, 4.0])
    seen = replace(view(4, n_samples=np.full(4, 10)), last_loss=losses)
    choice, _ = stated(make("optimal_sampling", by="losses", floor=0.0), seen, 1)
    np.testing.assert_allclose(choice.inclusion, np.array([1, 2, 4, 4])[choice.clients] / 11)
    assert make("optimal_sampling", by="losses").needs == {"losses"}
    assert make("optimal_sampling").needs == {"norms"}


def test_clients_without_an_update_count_with_the_largest_norm() -> None:
    seen = view(4, n_samples=np.full(4, 10), update_norms=lookup([1.0, np.nan, 3.0, np.inf]))
    for seed in range(8):
        choice, _ = stated(make("optimal_sampling", floor=0.0), seen, 1, seed)
        np.testing.assert_allclose(choice.inclusion, np.array([1, 3, 3, 3])[choice.clients] / 10)
    first, _ = stated("optimal_sampling", view(4, n_samples=np.full(4, 10)), 2)
    np.testing.assert_allclose(first.inclusion, 0.5)


def test_weights_by_the_inverse_probability_give_the_mean_of_all() -> None:
    """The reason for the probabilities: Σ (a / π) D over those drawn is Σ a D in expectation."""
    draw = np.random.default_rng(3)
    rows, sizes = draw.normal(size=(6, 4)) * draw.lognormal(size=(6, 1)), draw.integers(10, 60, size=6)
    seen = view(6, n_samples=sizes, update_norms=lookup(np.linalg.norm(rows, axis=1)))
    weights, total = sizes / sizes.sum(), []
    for seed in range(4000):
        choice, _ = stated("optimal_sampling", seen, 3, seed)
        total.append((weights[choice.clients] / choice.inclusion) @ rows[choice.clients])
    error = np.std(total, axis=0) / np.sqrt(len(total))
    assert (abs(np.mean(total, axis=0) - weights @ rows) <= 4 * error).all()

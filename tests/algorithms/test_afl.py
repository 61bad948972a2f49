"""AFL: the projection, the clients' weights, and partial participation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.algorithms.afl import project
from fedsim.common.errors import ConfigError
from rule_calls import combine
from stacks import assert_same, distinct_losses, seeds, updates

fast = settings(max_examples=80, deadline=None)


@pytest.mark.parametrize("size", [1e7, 1e16, 1e30])
def test_projection_stands_large_numbers(size: float) -> None:
    assert project(np.array([0.5, size, 0.0])).tolist() == [0.0, 1.0, 0.0]
    np.testing.assert_allclose(project(np.array([size, size])), [0.5, 0.5])


@fast
@given(seeds, st.integers(1, 30), st.floats(-5, 5))
def test_projection_is_the_nearest_point_of_the_simplex(seed: int, n: int, shift: float) -> None:
    draw = np.random.default_rng(seed)
    y = draw.normal(size=n)
    x = project(y)
    assert x.min() >= 0
    assert x.sum() == pytest.approx(1, abs=1e-12)
    others = draw.dirichlet(np.ones(n), size=20)
    assert np.linalg.norm(x - y) <= np.linalg.norm(others - y, axis=1).min() + 1e-12
    np.testing.assert_allclose(project(x), x, atol=1e-14)
    np.testing.assert_allclose(project(y + shift), x, atol=1e-12)
    order = np.argsort(y)
    assert (np.diff(x[order]) >= -1e-15).all()


@fast
@given(seeds, st.integers(1, 30))
def test_projections_of_public_codes_are_exact_on_the_simplex(seed: int, n: int) -> None:
    x = np.random.default_rng(seed).dirichlet(np.ones(n))
    np.testing.assert_allclose(project(x, "fair_flearn"), x, atol=1e-14)
    np.testing.assert_allclose(project(x, "gfedplat"), x, atol=1e-14)


def test_the_public_codes_slip_leaves_the_simplex() -> None:
    y = np.array([2.0, 0.8])
    np.testing.assert_allclose(project(y), [1, 0], atol=1e-15)
    np.testing.assert_allclose(project(y, "fair_flearn"), [1.1, 0], atol=1e-15)
    np.testing.assert_allclose(project(y, "gfedplat"), [1 + 1e-6, 0], atol=1e-11)


@fast
@given(seeds, st.integers(1, 8))
def test_equal_losses_leave_the_mixture_uniform(seed: int, m: int) -> None:
    rows = updates(seed, m, 5)
    result = combine("afl", rows, losses=np.full(m, 2.0))
    np.testing.assert_allclose(result.state["mixture"], np.full(m, 1 / m), atol=1e-14)
    assert_same(result.direction, rows.mean(axis=0))


def test_weights_move_to_the_largest_loss_one_step_later() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0]])
    first = combine("afl", rows, losses=[1.0, 3.0], gamma_lambda=0.1)
    assert first.weights.tolist() == [[0.5, 0.5]]
    second = combine("afl", rows, losses=[1.0, 3.0], gamma_lambda=0.1, state=first.state)
    np.testing.assert_allclose(second.weights, [[0.4, 0.6]])
    assert (first.average, second.average) == (1.0, 0.5)
    assert combine("afl", rows, losses=[1.0, 3.0], average=False).average is None


def test_averaging_the_iterates_gives_their_mean() -> None:
    params, average, state = np.zeros(3), np.zeros(3), None
    iterates = []
    for seed in range(5):
        result = combine("afl", updates(seed, 3, 3), losses=distinct_losses(seed, 3), state=state)
        params, state = params - result.direction, result.state
        assert result.average is not None
        average = average + result.average * (params - average)
        iterates.append(params)
    assert_same(average, np.mean(iterates, axis=0), 1e-12)


PARTIAL: dict[str, Any] = {"losses": [1.0, 2.0], "clients": [1, 3], "n_clients": 4, "gamma_lambda": 0.1}


def test_some_of_the_clients_share_the_step_among_them() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 1.0]])
    shared = combine("afl", rows, **PARTIAL)
    np.testing.assert_allclose(shared.weights, [[0.5, 0.5]])
    expected = project(np.array([0.25, 0.35, 0.25, 0.45]))
    np.testing.assert_allclose(shared.state["mixture"], expected, atol=1e-14)
    unbiased = combine("afl", rows, **PARTIAL, partial="importance")
    np.testing.assert_allclose(unbiased.weights, [[0.5, 0.5]])
    expected = project(np.array([0.25, 0.45, 0.25, 0.65]))
    np.testing.assert_allclose(unbiased.state["mixture"], expected, atol=1e-14)


def test_nobody_with_weight_means_no_move() -> None:
    state = {"mixture": np.array([1.0, 0.0, 0.0, 0.0]), "steps": 4}
    for partial in ("renormalise", "importance"):
        result = combine("afl", np.ones((2, 2)), **PARTIAL, partial=partial, state=state)
        assert not result.direction.any()
        assert result.state["mixture"][3] > 0


def test_two_updates_of_a_client_share_its_weight() -> None:
    result = combine("afl", np.eye(3), losses=[1.0, 3.0, 2.0], clients=[0, 0, 1], gamma_lambda=0.1)
    np.testing.assert_allclose(result.weights, [[0.25, 0.25, 0.5]])
    np.testing.assert_allclose(result.state["mixture"], [0.5, 0.5])


def test_client_beyond_the_population_is_named() -> None:
    with pytest.raises(ConfigError, match="expected clients 0 to 1, found client 9; give 'n_clients'"):
        combine("afl", np.eye(2), losses=[1.0, 2.0], clients=[0, 9])


def test_places_in_a_round_may_have_the_weights() -> None:
    """Weights computed by hand: in each round the first client has a loss of 1, the second one of 3."""
    rows, given = np.eye(2), {"losses": [1.0, 3.0], "n_clients": 9, "gamma_lambda": 0.1, "by": "place"}
    first = combine("afl", rows, clients=[5, 2], **given)
    second = combine("afl", rows, clients=[0, 8], **given, state=first.state)
    np.testing.assert_allclose(first.weights, [[0.5, 0.5]])
    np.testing.assert_allclose(second.weights, [[0.4, 0.6]])
    one = combine("afl", rows[:1], losses=[1.0], clients=[3], n_clients=9, by="place", state=second.state)
    assert one.weights.tolist() == [[1.0]]
    three = combine("afl", np.eye(3), losses=[1.0] * 3, n_clients=9, by="place", state=first.state)
    np.testing.assert_allclose(three.weights, [[0.4 * 2 / 3, 0.6 * 2 / 3, 1 / 3]])
    with pytest.raises(ConfigError, match="partial"):
        combine("afl", rows, clients=[5, 2], **given, partial="importance")

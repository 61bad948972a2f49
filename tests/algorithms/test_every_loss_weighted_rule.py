"""DRFL, FedGini and TERM: averages whose weights follow the losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError
from rule_calls import combine
from stacks import assert_same, distinct_losses, seeds, updates

fast = settings(max_examples=60, deadline=None)
sizes = st.integers(1, 10)


def weights(rule: str, losses: Any, **given: Any) -> Any:
    return combine(rule, np.ones((len(losses), 2)), losses=losses, **given).weights[0]


@fast
@given(seeds, sizes, st.floats(0, 5, width=16))
def test_drfl_weights_are_shares_of_powers_of_the_losses(seed: int, m: int, q: float) -> None:
    losses = distinct_losses(seed, m)
    np.testing.assert_allclose(weights("drfl", losses, q=q), losses**q / (losses**q).sum(), rtol=1e-10)
    np.testing.assert_allclose(weights("drfl", losses * 1e200, q=q), weights("drfl", losses, q=q), rtol=1e-9)


def test_qfedavg_takes_the_losses_before_or_after_training() -> None:
    rows, before, after = np.diag([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]), np.array([2.0, 0.5, 1.0])
    own = {"losses_after": after, "accuracies_after": np.ones(3)}
    options = {"q": 2.0, "lr": 0.1, "losses": "after"}
    found = combine("qfedavg", rows, losses=None, options=options, **own)
    assert_same(found.weights, combine("qfedavg", rows, losses=after, q=2.0, lr=0.1).weights)
    assert abs(found.weights - combine("qfedavg", rows, losses=before, q=2.0, lr=0.1).weights).max() > 0.01
    with pytest.raises(ConfigError, match="losses_after"):
        combine("qfedavg", rows, losses=before, options=options)


def test_qfedavg_may_take_sums_over_samples() -> None:
    rows, means, sizes = np.diag([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0]), np.array([20, 5, 1])
    found = combine("qfedavg", rows, losses=means, q=2.0, lr=0.1, reduction="sum", n_samples=sizes)
    sums = means * sizes
    slopes = 2 * sums * (np.array([1, 4, 9]) / 0.1**2) + sums**2 / 0.1  # q F^(q-1) L² |Δ|² + L F^q
    np.testing.assert_allclose(found.weights[0], sums**2 / 0.1 / slopes.sum(), rtol=1e-9)


def test_drfl_without_any_loss_is_the_plain_mean() -> None:
    assert weights("drfl", [0.0, 0.0]).tolist() == [0.5, 0.5]


@fast
@given(seeds, sizes, st.floats(0, 1, width=16))
def test_fedgini_weights_follow_the_rank(seed: int, m: int, epsilon: float) -> None:
    losses = distinct_losses(seed, m)
    up = weights("fedgini", losses, epsilon=epsilon)
    down = weights("fedgini", losses, epsilon=epsilon, order="descending")
    assert up.sum() == pytest.approx(1, abs=1e-12)
    by_loss = np.argsort(losses)
    assert (np.diff(up[by_loss]) >= 0).all()
    np.testing.assert_allclose(down[by_loss], up[by_loss][::-1], rtol=1e-12)
    np.testing.assert_allclose(weights("fedgini", losses, epsilon=1.0), np.full(m, 1 / m), rtol=1e-12)


def test_fedgini_s_published_slip_is_an_option() -> None:
    losses = [2.0, 3.0, 1.0]  # ascending order: positions 2, 0, 1
    true, slip = (weights("fedgini", losses, epsilon=0.0, rank=rank) for rank in ("true", "released"))
    np.testing.assert_allclose(true * 4, [1.25, 1.75, 1.0])
    np.testing.assert_allclose(slip * 4, [1.75, 1.0, 1.25])


@fast
@given(seeds, sizes, st.floats(0.01, 50))
def test_term_s_cohort_weights_are_a_softmax(seed: int, m: int, t: float) -> None:
    losses = distinct_losses(seed, m)
    expected = np.exp(t * (losses - losses.max()))
    for normaliser in ("cohort", "running"):  # the first step has nothing to smooth
        actual = weights("term", losses, t=t, normaliser=normaliser)
        np.testing.assert_allclose(actual, expected / expected.sum(), rtol=1e-9)
    shifted = weights("term", losses + 1e4, t=t, normaliser="cohort")
    np.testing.assert_allclose(shifted, expected / expected.sum(), rtol=1e-6)


def test_term_smooths_its_normaliser_over_steps() -> None:
    one, two = np.array([1.0, 2.0]), np.array([3.0, 1.0])
    first = combine("term", np.eye(2), losses=one, t=0.7, smoothing=0.25)
    second = combine("term", np.eye(2), losses=two, t=0.7, smoothing=0.25, state=first.state)
    z = 0.75 * np.exp(0.7 * one).mean() + 0.25 * np.exp(0.7 * two).mean()
    np.testing.assert_allclose(second.weights[0], np.exp(0.7 * two) / (2 * z), rtol=1e-12)
    assert second.state["log_z"] == pytest.approx(np.log(z))


def test_term_of_small_tilt_is_the_plain_mean() -> None:
    rows = updates(1, 5, 4)
    direction = combine("term", rows, losses=distinct_losses(1, 5), t=1e-9).direction
    assert_same(direction, rows.mean(axis=0), 1e-7)

"""q-FedAvg and q-FedSGD: the formulas of the paper, its limits, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.errors import ConfigError
from fedsim.server.rule_factory import build_rule
from rule_calls import combine
from stacks import assert_same, distinct_losses, seeds, updates

fast = settings(max_examples=60, deadline=None)
sizes = st.integers(1, 10)
exponents = st.sampled_from([0.0, 0.001, 0.5, 1.0, 5.0, 15.0])


def run(rule: str, rows: Any, losses: Any, **options: Any) -> Any:
    return combine(rule, rows, losses=losses, **options).direction


@fast
@given(seeds, sizes, exponents, st.floats(1e-3, 10), st.sampled_from(["qfedavg", "qfedsgd"]))
def test_step_is_that_of_the_paper(seed: int, m: int, q: float, lr: float, rule: str) -> None:
    rows, losses = updates(seed, m, 12), distinct_losses(seed, m)
    f, delta = losses + 1e-10, rows / lr
    h = q * f ** (q - 1) * (delta**2).sum(axis=1) + f**q / lr
    expected = (f[:, None] ** q * delta).sum(axis=0) / h.sum()
    assert_same(run(rule, rows, losses, q=q, lr=lr), expected)


@fast
@given(seeds, sizes, st.floats(1e-3, 10))
def test_without_fairness_it_is_the_plain_mean(seed: int, m: int, lr: float) -> None:
    rows, losses = updates(seed, m, 12), distinct_losses(seed, m)
    assert_same(run("qfedavg", rows, losses, q=0.0, lr=lr), rows.mean(axis=0))
    assert_same(run("qfedavg", rows, losses, q=0.0, L=1 / lr), rows.mean(axis=0))


@fast
@given(seeds, sizes, st.floats(0.1, 5), st.floats(0.1, 10))
def test_equal_losses_damp_the_mean_by_the_known_factor(seed: int, m: int, q: float, loss: float) -> None:
    rows, lr = updates(seed, m, 12), 0.1
    squares = ((rows / lr) ** 2).sum(axis=1).mean()
    expected = rows.mean(axis=0) / (1 + q * squares * lr / loss)
    assert_same(run("qfedavg", rows, np.full(m, loss), q=q, lr=lr), expected, 1e-7)


@fast
@given(seeds, sizes, exponents)
def test_step_is_no_longer_than_the_weighted_mean(seed: int, m: int, q: float) -> None:
    rows, losses = updates(seed, m, 12), distinct_losses(seed, m)
    mean = np.average(rows, axis=0, weights=losses**q)
    step = run("qfedavg", rows, losses, q=q, lr=0.1)
    assert np.linalg.norm(step) <= np.linalg.norm(mean) * (1 + 1e-6)


def test_rules_agree_when_the_constant_is_the_inverse_rate() -> None:
    rows, losses = updates(1, 4, 6), distinct_losses(1, 4)
    assert_same(run("qfedsgd", rows, losses, lr=0.2), run("qfedavg", rows, losses, lr=0.2), 1e-12)
    assert_same(run("qfedsgd", rows, losses, L=5.0), run("qfedavg", rows, losses, L=5.0), 1e-12)
    apart = run("qfedsgd", rows, losses, lr=0.2, L=50.0)
    assert np.linalg.norm(apart) < np.linalg.norm(run("qfedsgd", rows, losses, lr=0.2))


def test_huge_and_zero_losses_stay_finite() -> None:
    rows = updates(2, 3, 5)
    for losses in ([0.0, 0.0, 0.0], [1e30, 1.0, 0.0], [1e-30, 2e-30, 0.0]):
        for q in (0.5, 15.0):
            assert np.isfinite(run("qfedavg", rows, losses, q=q, lr=0.1)).all()


@pytest.mark.parametrize("rule", ["qfedavg", "qfedsgd"])
def test_the_step_of_the_clients_is_needed(rule: str) -> None:
    with pytest.raises(ConfigError, match=f"rule '{rule}', option 'lr': expected the clients' learning rate"):
        combine(rule, np.ones((2, 2)), losses=[1.0, 2.0])
    rows, losses = updates(1, 4, 6), distinct_losses(1, 4)
    given_rate = combine(build_rule(rule, {}, lr=0.3), rows, losses=losses).direction
    assert_same(given_rate, run(rule, rows, losses, lr=0.3), 0)
    own = combine(build_rule(rule, {"L": 7.0}, lr=0.3), rows, losses=losses).direction
    both = {"lr": 0.3} if rule == "qfedsgd" else {}  # q-FedAvg's L stands in for the rate
    assert_same(own, run(rule, rows, losses, L=7.0, **both), 0)


@pytest.mark.parametrize("rule", ["qfedavg", "qfedsgd", "drfl"])
@pytest.mark.parametrize("q", [0.5, 1.0])
def test_losses_below_zero_count_as_zero(rule: str, q: float) -> None:
    rows, options = updates(3, 3, 5), {"q": q} | ({} if rule == "drfl" else {"lr": 0.1})
    for losses in ([-3.0, 1.0, 2.0], [-1.0, -2.0, -3.0]):
        assert_same(
            run(rule, rows, losses, **options), run(rule, rows, np.maximum(losses, 0.0), **options), 0
        )

"""FedFa: weights by accuracy and frequency, and the two momenta."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.algorithms.fedfa import fedfa
from fedsim.common.errors import ConfigError
from fedsim.server.combine import Combined
from fedsim.server.rule import Needs
from rule_calls import combine
from stacks import assert_same, seeds, updates

fast = settings(max_examples=60, deadline=None)


def run(rows: Any, accuracies: Any, counts: Any, **given: Any) -> Combined[Any]:
    after: dict[str, Any] = {"losses_after": np.ones(len(rows)), "accuracies_after": accuracies}
    return combine("fedfa", rows, losses=None, participations=counts, **after, **given)


@fast
@given(seeds, st.integers(2, 9), st.floats(0, 1, width=16))
def test_inaccurate_and_frequent_clients_get_more(seed: int, m: int, beta: float) -> None:
    draw = np.random.default_rng(seed)
    accuracies, counts = draw.uniform(0.05, 1, size=m), draw.integers(1, 30, size=m)
    rows = np.eye(m)
    weights = run(rows, accuracies, counts, beta=beta).weights[0]
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-9)
    by_accuracy = run(rows, accuracies, counts, beta=0.0).weights[0]
    assert (np.diff(by_accuracy[np.argsort(accuracies)]) <= 1e-12).all()
    by_count = run(rows, accuracies, counts, beta=1.0).weights[0]
    assert (np.diff(by_count[np.argsort(counts, kind="stable")]) >= -1e-12).all()
    assert_same(weights, (1 - beta) * by_accuracy + beta * by_count, 1e-9)


@pytest.mark.parametrize("form", ["paper", "easyfl", "gfedplat"])
def test_one_client_alone_and_useless_models_have_finite_weights(form: str) -> None:
    for accuracies in ([0.0], [1.0]):
        assert run(np.ones((1, 2)), accuracies, [1], form=form).weights.tolist() == [[1.0]]
    if form != "gfedplat":
        assert_same(run(np.eye(2), [0.0, 0.0], [1, 1], form=form).weights, [[0.5, 0.5]], 1e-12)


def test_momentum_by_hand() -> None:
    rows = updates(1, 3, 4)
    given: Any = ([0.5, 0.5, 0.5], [1, 1, 1])
    mean = rows.mean(axis=0)
    expected = {
        "paper": [0.5 * mean, 0.75 * mean],
        "easyfl": [mean - 0.1 * 0.5 * mean, mean - 0.1 * 0.75 * mean],
        "gfedplat": [mean, 1.5 * mean],
    }
    for form, (one, two) in expected.items():
        first = run(rows, *given, form=form, gamma=0.5)
        second = run(rows, *given, form=form, gamma=0.5, vectors=first.vectors)
        assert_same(first.direction, one, 1e-9)
        assert_same(second.direction, two, 1e-9)


def test_it_needs_the_accuracies_of_the_clients_own_models() -> None:
    assert fedfa().needs == Needs(after=True)
    with pytest.raises(ConfigError, match="'losses_after': this rule needs the losses after, found None"):
        combine("fedfa", np.eye(2), losses=None)

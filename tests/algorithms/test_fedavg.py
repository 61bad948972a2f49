"""Averages: weights by hand, and the model that each weighting gives."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from fedsim.algorithms.fedavg import Weighting, fedavg
from rule_calls import combine

PARAMS = np.array([1.0, -1.0, 2.0])
LOCAL = np.array([[0.0, 0.0, 0.0], [4.0, 4.0, 4.0]])
POPULATION: dict[str, Any] = {"n_samples": [30, 10], "n_clients": 8, "total_samples": 200}
"""Where no two weightings agree."""


def model(**options: Any) -> Any:
    result = combine("fedavg", PARAMS - LOCAL, losses=None, **POPULATION, **options)
    return result.keep * PARAMS - result.direction


def test_data_weights_are_shares_of_the_samples() -> None:
    np.testing.assert_allclose(model(), 0.75 * LOCAL[0] + 0.25 * LOCAL[1], rtol=1e-15)


def test_uniform_weights_give_the_plain_mean() -> None:
    np.testing.assert_allclose(model(weighting="uniform"), LOCAL.mean(axis=0), rtol=1e-15)


def test_scaled_weights_need_not_sum_to_one() -> None:
    shares = np.array([30, 10]) / 200 * 8 / 2
    np.testing.assert_allclose(model(weighting="scaled"), shares @ LOCAL, rtol=1e-14)


def test_completed_weights_leave_the_rest_to_the_present_model() -> None:
    shares = np.array([30, 10]) / 200
    expected = (1 - shares.sum()) * PARAMS + shares @ LOCAL
    np.testing.assert_allclose(model(weighting="completed"), expected, rtol=1e-14)


def test_sequential_weights_fold_the_models_in_one_by_one() -> None:
    folded = PARAMS
    for local in LOCAL:
        folded = folded + (local - folded) / 8
    np.testing.assert_allclose(model(weighting="sequential"), folded, rtol=1e-14)
    alone = combine("fedavg", PARAMS - LOCAL, losses=None, clients=[5, 5], weighting="sequential")
    np.testing.assert_array_equal(PARAMS - alone.direction, LOCAL[-1])


@pytest.mark.parametrize("weighting", get_args(Weighting))
def test_only_weightings_that_sum_to_one_promise_a_convex_combination(weighting: Weighting) -> None:
    result = combine("fedavg", PARAMS - LOCAL, losses=None, **POPULATION, weighting=weighting)
    convex = bool((result.weights >= 0).all()) and result.weights.sum() == pytest.approx(1)
    assert ("convex" in fedavg(weighting=weighting).promises) == convex == (weighting in ("data", "uniform"))


@pytest.mark.parametrize("weighting", get_args(Weighting))
def test_remembered_rows_carry_no_weight(weighting: str) -> None:
    rows = np.vstack([PARAMS - LOCAL, np.ones(3)])
    given = {**POPULATION, "n_samples": [30, 10, 99]}
    result = combine("fedavg", rows, losses=None, ages=[0, 0, 1], **given, weighting=weighting)
    without = combine("fedavg", rows[:2], losses=None, **POPULATION, weighting=weighting)
    assert result.weights[0, 2] == 0
    np.testing.assert_array_equal(result.direction, without.direction)

"""The spread of true accuracies against sums over all possible test results, and a simulation with known truth."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedsim.analysis import summary
from fedsim.analysis.statistics.variance.sampling_noise import true_variance

METRICS = ("std_true_percent", "std_true_over_samples_percent", "std_floor_percent")


def expected(statistic, p: list[float], n: list[int]) -> float:
    """Return the mean of a statistic of accuracies over all numbers of correct samples, weighted by their chances."""
    total = 0.0
    for correct in product(*(range(each + 1) for each in n)):
        total += np.prod(stats.binom.pmf(correct, n, p)) * statistic(np.array(correct) / n)
    return float(total)


@pytest.mark.parametrize("weights", [[1.0, 1, 1], [2.0, 5, 3], [0.1, 0.2, 0.7]])
@pytest.mark.parametrize("p", [[0.2, 0.5, 0.9], [0.6, 0.6, 0.6], [0.0, 1.0, 0.5]])
def test_the_true_variance_is_unbiased(p: list[float], weights: list[float]) -> None:
    n, w = np.array([2, 5, 3]), np.array(weights)
    mean = np.average(p, weights=w)
    truth = np.average((np.array(p) - mean) ** 2, weights=w)
    assert expected(lambda a: true_variance(a, n, w), p, n.tolist()) == pytest.approx(truth, abs=1e-12)
    assert (
        expected(lambda a: np.average((a - w @ a / w.sum()) ** 2, weights=w), p, n.tolist()) > truth + 0.005
    )


def test_the_floor_is_the_expected_variance_of_an_equal_model() -> None:
    n, level = [2, 5, 3], 0.7
    seen = expected(lambda a: float(a.var()), [level] * 3, n)
    assert summary([level] * 3, n, ["std_floor_percent"])["std_floor_percent"] ** 2 == pytest.approx(
        1e4 * seen
    )


def test_simulated_clients_have_the_spread_that_they_were_given() -> None:
    draws = np.random.default_rng(0)
    n = draws.integers(5, 30, 4000)
    p = draws.beta(16, 4, len(n))
    found = summary(draws.binomial(n, p) / n, n)
    assert found["std_true_percent"] == pytest.approx(100 * p.std(), abs=0.5)
    over_samples = 100 * np.sqrt(np.cov(p, aweights=n, ddof=0))
    assert found["std_true_over_samples_percent"] == pytest.approx(over_samples, abs=0.5)
    assert found["std_percent"] > 100 * p.std() + 4
    assert found["std_percent"] ** 2 < found["std_true_percent"] ** 2 + found["std_floor_percent"] ** 2
    equal = summary(draws.binomial(n, 0.8) / n, n)
    assert equal["std_percent"] == pytest.approx(equal["std_floor_percent"], abs=0.3)


def test_values_of_two_clients() -> None:
    found = summary([0.5, 1.0], [5, 10], METRICS)
    assert found["std_true_percent"] == pytest.approx(100 * np.sqrt(0.0625 - 0.5 * 0.0625 / 2))
    shares = 2 / 9 * 0.25, 2 / 9 * 0.0625  # the weights 1/3 and 2/3
    assert found["std_true_over_samples_percent"] == pytest.approx(100 * np.sqrt(shares[0] - shares[1]))
    assert found["std_floor_percent"] == pytest.approx(100 * np.sqrt(0.5 * 0.75 * 0.25 * 0.15))


def test_large_test_sets_leave_the_spread_as_it_is() -> None:
    accuracy = [0.2, 0.5, 0.9]
    found = summary(accuracy, [10**12] * 3)
    assert found["std_true_percent"] == pytest.approx(found["std_percent"], rel=1e-9)
    assert found["std_floor_percent"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("accuracy", [[0.5, 0.5, 0.5], [0.6], [1.0, 1.0], [0.0, 0.0], [0.5, 0.6]])
def test_a_spread_that_noise_explains_is_zero(accuracy: list[float]) -> None:
    found = summary(accuracy, [10] * len(accuracy), METRICS)
    assert found["std_true_percent"] == found["std_true_over_samples_percent"] == 0
    assert (found["std_floor_percent"] == 0) == (len(accuracy) == 1 or accuracy[0] in (0, 1))


def test_clients_with_one_sample_are_left_out_of_the_true_spread() -> None:
    names = METRICS[:2]
    assert summary([0.2, 1.0, 0.8], [50, 1, 50], names) == summary([0.2, 0.8], [50, 50], names)
    alone = summary([0.0, 1.0], [1, 1], METRICS)
    assert np.isnan([alone[name] for name in names]).all()
    assert alone["std_floor_percent"] == pytest.approx(100 * np.sqrt(0.5 * 0.25))

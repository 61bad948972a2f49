"""Laws of durations against their moments."""

import math

import numpy as np
import pytest
from pydantic import ValidationError

from fedsim.common.rng import rng
from fedsim.common.units import US
from fedsim.scenarios.processes.laws import Law, exponentials

SECOND_MOMENTS = {
    ("exponential", None): 2.0,
    ("weibull", 0.6): math.gamma(1 + 2 / 0.6) / math.gamma(1 + 1 / 0.6) ** 2,
    ("weibull", 3.0): math.gamma(1 + 2 / 3) / math.gamma(1 + 1 / 3) ** 2,
    ("gamma", 0.5): 1 + 1 / 0.5,
    ("gamma", 4.0): 1 + 1 / 4,
    ("lognormal", 0.7): math.exp(0.7**2),
    ("uniform", None): 4 / 3,
    ("constant", None): 1.0,
}
"""E[X^2] of laws with mean 1."""


def sample(draw, n=20_000):
    rng = np.random.default_rng(5)
    return np.array([draw(rng) for _ in range(n)]) / (60 * US)


@pytest.mark.parametrize(("name", "shape"), SECOND_MOMENTS)
def test_moments(name, shape):
    x = sample(Law(law=name, mean="1min", shape=shape).draw_us)
    assert x.mean() == pytest.approx(1, abs=5 * x.std() / math.sqrt(len(x)) + 1e-6)
    squares = x**2
    error = 5 * squares.std() / math.sqrt(len(x)) + 1e-6
    assert squares.mean() == pytest.approx(SECOND_MOMENTS[name, shape], abs=error)


@pytest.mark.parametrize(("name", "shape"), SECOND_MOMENTS)
def test_what_is_left_at_a_random_instant_has_the_mean_of_renewal_theory(name, shape):
    x = sample(Law(law=name, mean="1min", shape=shape).draw_rest_us)
    error = 5 * x.std() / math.sqrt(len(x))
    assert x.mean() == pytest.approx(SECOND_MOMENTS[name, shape] / 2, abs=error)


@pytest.mark.parametrize(("name", "shape"), [("weibull", 0.6), ("gamma", 4.0), ("lognormal", 0.7)])
def test_what_is_left_has_the_tail_of_renewal_theory(name, shape):
    """P(rest > r) is the integral of P(X > x) beyond r over the mean, here E[max(X - r, 0)] of a sample."""
    law = Law(law=name, mean="1min", shape=shape)
    rest, whole = sample(law.draw_rest_us), sample(law.draw_us)
    for r in (0.2, 1.0, 2.0):
        assert np.mean(rest > r) == pytest.approx(np.mean(np.maximum(whole - r, 0)), abs=0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"law": "weibul", "mean": "1h"}, "'exponential', 'weibull'"),
        ({"law": "weibull", "mean": "1h"}, "expected a shape from 0.1 to 10 with the law 'weibull'"),
        ({"law": "gamma", "mean": "1h", "shape": 0}, "greater than or equal to 0.1"),
        ({"mean": "1h", "shape": 2}, "expected no shape with the law 'exponential', found shape = 2"),
        ({"mean": "soon"}, "expected a duration"),
        ({"mean": 0}, "expected a duration of at least 1 us"),
        ({"means": "1h"}, "unknown key 'means'; did you mean 'mean'?"),
        ({}, "mean"),
    ],
)
def test_bad_laws_are_refused(options, message):
    with pytest.raises(ValidationError) as caught:
        Law(**options)
    assert message in str(caught.value)


def test_exponential_numbers_in_advance_are_those_one_by_one():
    one_by_one = rng(5, "x", 1)
    found = exponentials(rng(5, "x", 1))
    assert [next(found) for _ in range(100)] == [one_by_one.exponential() for _ in range(100)]

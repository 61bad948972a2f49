"""Variance components against their exact expectations, least squares and textbook formulas."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from fedsim.analysis.statistics.variance.anova import components

Array = np.ndarray


def estimates(values: Array) -> dict[tuple[str, ...], float]:
    return {each.factors: each.estimate for each in components(values, "abcd"[: values.ndim])}


def indicators(shape: tuple[int, ...], subset: tuple[int, ...]) -> list[Array]:
    """Return an array for each combination of levels of some axes, which is 1 there and 0 elsewhere."""
    where = np.indices(shape)
    chosen = product(*(range(shape[i]) for i in subset))
    return [
        np.all([where[i] == k for i, k in zip(subset, each, strict=True)], axis=0) * 1.0 for each in chosen
    ]


@pytest.mark.parametrize("shape", [(2, 3), (4, 2), (2, 3, 4), (3, 2, 2, 3), (5,)])
def test_estimates_are_unbiased(shape: tuple[int, ...]) -> None:
    """An estimate is a quadratic form q, so E q(y) = sum_i q(z_i) for y = sum_i u_i z_i, u_i independent of variance 1.

    The z_i of one component are its indicators, so the sum is 1 for its own estimate and 0 for all others.
    """
    subsets = [s for size in range(len(shape)) for s in combinations(range(len(shape)), size + 1)]
    for subset in subsets:
        found = [estimates(z) for z in indicators(shape, subset)]
        own = tuple("abcd"[i] for i in subset)
        for name in found[0]:
            assert sum(each[name] for each in found) == pytest.approx(float(name == own), abs=1e-12)


def residual_squares(values: Array, subsets: list[tuple[int, ...]]) -> float:
    """Return the sum of squares that least squares leaves with the effects of these subsets in the model."""
    columns = [np.ones(values.size)]
    columns += [z.ravel() for subset in subsets for z in indicators(values.shape, subset)]
    design = np.stack(columns, axis=1)
    fitted = design @ np.linalg.lstsq(design, values.ravel(), rcond=None)[0]
    return float(((values.ravel() - fitted) ** 2).sum())


def test_mean_squares_are_those_of_least_squares() -> None:
    values = np.random.default_rng(1).normal(size=(3, 2, 4))
    names = {
        ("a",): (0,),
        ("b",): (1,),
        ("c",): (2,),
        ("a", "b"): (0, 1),
        ("a", "c"): (0, 2),
        ("b", "c"): (1, 2),
    }
    for each in components(values, "abc"):
        if each.factors in names:
            own = names[each.factors]
            below = [s for s in names.values() if set(s) < set(own)]
            squares = residual_squares(values, below) - residual_squares(values, [*below, own])
        else:
            squares = residual_squares(values, list(names.values()))
        assert each.mean_square * each.df == pytest.approx(squares)
    assert [each.df for each in components(values, "abc")] == [2, 1, 3, 2, 6, 3, 6]


def test_estimates_follow_the_textbook() -> None:
    """Searle, Casella and McCulloch (1992) solve E MS = ... by differences of mean squares."""
    values = np.random.default_rng(2).normal(size=(3, 2, 4))
    found = {"".join(each.factors): each for each in components(values, "abc")}
    ms = {name: each.mean_square for name, each in found.items()}
    assert found["a"].estimate == pytest.approx((ms["a"] - ms["ab"] - ms["ac"] + ms["abc"]) / (2 * 4))
    assert found["bc"].estimate == pytest.approx((ms["bc"] - ms["abc"]) / 3)
    assert found["abc"].estimate == ms["abc"]
    two = {"".join(each.factors): each for each in components(values[0], "bc")}
    assert two["b"].estimate == pytest.approx((two["b"].mean_square - two["bc"].mean_square) / 4)


def test_simulated_components_are_found() -> None:
    draws, shape = np.random.default_rng(3), (60, 50, 40)
    sizes = {(0,): 3.0, (1,): 2.0, (2,): 1.0, (0, 1): 1.5, (0, 1, 2): 0.5}
    values = np.full(shape, 70.0)
    for subset, std in sizes.items():
        own = [n if i in subset else 1 for i, n in enumerate(shape)]
        values = values + draws.normal(0, std, own)
    found = {each.factors: each.variance for each in components(values, ["data", "world", "train"])}
    assert found["data",] == pytest.approx(9, rel=0.4)
    assert found["world",] == pytest.approx(4, rel=0.4)
    assert found["train",] == pytest.approx(1, rel=0.4)
    assert found["data", "world"] == pytest.approx(2.25, rel=0.1)
    assert found["data", "train"] == pytest.approx(0, abs=0.02)
    assert found["data", "world", "train"] == pytest.approx(0.25, rel=0.03)


def test_negative_estimates_count_as_zero() -> None:
    values = np.array([[1.0, -1.0], [-1.0, 1.0]])  # an interaction alone
    found = components(values, "ab")
    assert [each.estimate for each in found] == pytest.approx([-2, -2, 4])
    assert [each.variance for each in found] == pytest.approx([0, 0, 4])


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (3,), ()])
def test_a_factor_needs_two_levels(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least 2 levels of each of 2 factors"):
        components(np.zeros(shape), "ab")


def test_a_missing_value_leaves_nothing_known() -> None:
    found = components(np.array([[1.0, np.nan], [0.0, 1.0]]), "ab")
    assert all(np.isnan([each.estimate, each.variance]).all() for each in found)

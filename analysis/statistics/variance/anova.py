"""Variance components of a balanced crossed design with one value per cell: random-effects analysis of variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedsim.common.arrays import Floats

Places = tuple[int, ...]
"""Axes of an array, in ascending order."""


@dataclass(frozen=True, slots=True)
class Component:
    """The part of the variance that one factor, or an interaction of several, adds to a value."""

    factors: tuple[str, ...]
    df: int
    """Degrees of freedom of the mean square."""
    mean_square: float
    estimate: float
    """The unbiased estimate, in the squared unit of the values; it may be negative."""

    @property
    def variance(self) -> float:
        """The estimate, 0 where it is negative."""
        return float(np.maximum(self.estimate, 0.0))


def components(values: Floats, factors: Sequence[str]) -> tuple[Component, ...]:
    """Estimate the variance components of the model `value = mean + sum of random effects`, one for each subset S.

    The factors are random: their levels are draws, as seeds are. The effects of each factor and each interaction are
    independent with a variance of their own; that of all factors together is the interaction plus all other noise, the
    residual. With mean squares MS, `estimate_S = sum_{T >= S} (-1)^(|T| - |S|) MS_T / prod_{j not in S} n_j`, which
    solves `E MS_S = sum_{T >= S} var_T prod_{j not in T} n_j`.

    Args:
        values: [n_1, ..., n_f] a value for each combination of levels, at least 2 of each factor.
        factors: [f] their names.

    Returns main effects first, the residual last. NaN in `values` makes all estimates NaN. Raises ValueError for a
    factor with a single level. Source: Cornfield and Tukey, Average Values of Mean Squares in Factorials,
    1956; Searle, Casella and McCulloch, Variance Components, 1992, chapter 4.
    """
    if values.ndim != len(factors) or min(values.shape, default=0) < 2:
        raise ValueError(
            f"expected at least 2 levels of each of {len(factors)} factors, found {list(values.shape)}"
        )
    places = range(values.ndim)
    subsets: list[Places] = [s for size in places for s in combinations(places, size + 1)]
    squares = {subset: _mean_square(values, subset) for subset in subsets}
    return tuple(
        Component(
            tuple(factors[i] for i in subset), *squares[subset], _estimate(values.shape, subset, squares)
        )
        for subset in subsets
    )


def _mean_square(values: Floats, subset: Places) -> tuple[int, float]:
    """Return the degrees of freedom and the mean square of the effect of some axes."""
    others = tuple(i for i in range(values.ndim) if i not in subset)
    effect = values.mean(axis=others, keepdims=True)
    for axis in subset:
        effect = effect - effect.mean(axis=axis, keepdims=True)
    df = int(np.prod([values.shape[i] - 1 for i in subset]))
    return df, float((effect**2).sum()) * values.size / effect.size / df


def _estimate(shape: tuple[int, ...], subset: Places, squares: dict[Places, tuple[int, float]]) -> float:
    above = [s for s in squares if set(s) >= set(subset)]
    total = sum((-1) ** (len(s) - len(subset)) * squares[s][1] for s in above)
    return float(total / np.prod([n for i, n in enumerate(shape) if i not in subset]))

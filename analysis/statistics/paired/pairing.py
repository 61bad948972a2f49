"""The gain of equal seeds: how many more runs independent seeds would need for the same standard error."""

from __future__ import annotations

import numpy as np

from fedsim.analysis.statistics.bootstrap import Statistic, interval
from fedsim.common.arrays import Floats

_NOTHING, _LEAST = 1e-12, 1e-20
"""Variances up to this share of the mean square, or to this size, are rounding errors."""


def pairing_factor(a: Floats, b: Floats) -> tuple[float, tuple[float, float] | None]:
    """Return `(var a + var b) / var(a - b)` for values [n] of the same seeds, and its 95 % bootstrap interval.

    The mean difference of n pairs has the variance `var(a - b) / n`; that of 2 n independent runs has
    `(var a + var b) / n`. So without pairing the same standard error needs this factor times as many runs, and the
    same number of runs gives an interval wider by its square root. A factor of 1 means that pairing gains nothing;
    below 1, the values vary in opposite directions. It is infinite if the values vary and their differences do not, and
    NaN if neither varies or there are fewer than 2 seeds.
    """
    if len(a) < 2:
        return float("nan"), None
    statistic = _factor_of(a, b)
    return float(statistic(np.ones((1, len(a))))[0]), interval(statistic, len(a))


def _factor_of(a: Floats, b: Floats) -> Statistic:
    columns = np.stack([side - side.mean() for side in (a, b, a - b)], axis=1)

    def statistic(counts: Floats) -> Floats:
        shares = counts / counts.sum(axis=1, keepdims=True)
        squares = shares @ columns**2
        variances = squares - (shares @ columns) ** 2
        of_a, of_b, of_both = np.where(variances > np.maximum(_NOTHING * squares, _LEAST), variances, 0.0).T
        apart = of_a + of_b
        unknown = np.where(apart > 0, np.inf, np.nan)
        return np.asarray(np.divide(apart, of_both, out=unknown, where=of_both > 0))

    return statistic

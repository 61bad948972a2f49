"""Tests of paired differences, and Holm's correction."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from fedsim.analysis.opening.study import Test
from fedsim.analysis.statistics.bootstrap import FEWEST
from fedsim.common.arrays import Floats

NAME_OF: dict[Test, str] = {"rank": "exact Wilcoxon signed-rank test", "t": "paired t test (Student)"}
ALPHA = 0.05
"""Tests reject below this p value, after correction."""


def sign_test(differences: ArrayLike) -> float:
    """Return the two-sided p value of the exact sign test: are as many differences above 0 as below?

    `2 P(X <= min(above, below))` with X binomial(n, 1/2), at most 1. Differences of 0 are left out; 1 if all are 0.
    """
    values = np.asarray(differences, dtype=np.float64)
    above, below = int((values > 0).sum()), int((values < 0).sum())
    return float(stats.binomtest(above, above + below).pvalue) if above + below else 1.0


def signed_rank_test(differences: ArrayLike) -> float:
    """Return the two-sided p value of Wilcoxon's exact signed-rank test: are the differences symmetric about 0?

    Differences of 0 are left out (Wilcoxon, Biometrics Bulletin 1, 1945); 1 if all are 0. Equal magnitudes share their
    mean rank. The p value is the share of the 2^n sign assignments whose rank sum lies at least as far from its mean as
    the observed one, counted exactly, also with ties.
    """
    values = np.asarray(differences, dtype=np.float64)
    values = values[values != 0]
    doubled = np.rint(2 * stats.rankdata(np.abs(values))).astype(
        np.int64
    )  # doubled midranks are whole numbers
    ways, total = rank_sums(doubled), int(doubled.sum())
    off = np.abs(2 * np.arange(total + 1) - total)
    distance = abs(2 * int(doubled[values > 0].sum()) - total)
    return min(1.0, float(ways[off >= distance].sum()))


def t_test(
    differences: ArrayLike, mean: float = 0.0, side: Literal["two-sided", "less", "greater"] = "two-sided"
) -> float:
    """Return the p value of Student's t test that the differences have this mean; 0 or 1 if all are equal.

    It assumes normal differences. NaN below 3.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < FEWEST:
        return float("nan")
    if np.ptp(values) == 0:
        off = float(values[0]) - mean
        if side == "two-sided" or off == 0:
            return float(off == 0)
        return float((off > 0) != (side == "greater"))
    return float(stats.ttest_1samp(values, mean, alternative=side).pvalue)


def p_value_of(test: Test, differences: ArrayLike) -> float:
    """Return the two-sided p value of a test."""
    return t_test(differences) if test == "t" else signed_rank_test(differences)


def rank_sums(ranks: Iterable[int]) -> Floats:
    """Return [total + 1] the share of all sign assignments in which the positive `ranks` have the sum 0, 1, 2, ..."""
    ways = np.ones(1)
    for rank in ranks:
        ways = (np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))) / 2
    return ways


def smallest_p(n: int) -> float:
    """Return the smallest p value of the rank test and the sign test for `n` differences other than 0: `2^(1 - n)`."""
    return min(1.0, 2.0 ** (1 - n))


def holm(p_values: ArrayLike) -> Floats:
    """Return [k] p values corrected for k comparisons (Holm, Scandinavian Journal of Statistics 6, 1979).

    The i-th smallest is multiplied by k - i + 1, and raised to at least the one before it. Rejecting results below 5 %
    keeps the probability of any false rejection below 5 %. NaN stays NaN and does not count as a comparison.
    """
    values = np.asarray(p_values, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.argsort(values[known], kind="stable")]
    result = np.full(len(values), np.nan)
    factors = np.arange(len(order), 0, -1)
    result[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return result

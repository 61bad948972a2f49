"""Differences with intervals that are corrected for all comparisons told together, and what they allow to be said."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from fedsim.analysis.opening.study import Test
from fedsim.analysis.statistics.bootstrap import FEWEST, Statistic, client_draws, interval
from fedsim.analysis.statistics.fairness import tail_size
from fedsim.analysis.statistics.paired.differences import Better, t_interval
from fedsim.analysis.statistics.paired.significance import ALPHA, holm, p_value_of
from fedsim.common.arrays import Floats

Verdict = Literal["better", "worse", "unconfirmed", "unseen"]
_MANY_DRAWS, _MANY = 10_000, 200
"""Resamples for up to so many clients; of more clients fewer are drawn."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """A difference from a baseline, with its interval after correction."""

    name: str
    """What differs from the baseline."""
    mean: float
    interval: tuple[float, float] | None
    """None if there are too few observations for one."""
    p: float | None = None
    """The p value after Holm's correction; None if there was no test."""
    better_is: Better = "larger"
    seeds: int | None = None
    """The number of seeds that have the difference; None for one over clients."""

    @property
    def verdict(self) -> Verdict:
        """What may be said: `unseen` if the interval holds zero, `unconfirmed` if the test, if any, allows chance."""
        if self.interval is None or not (self.interval[0] > 0 or self.interval[1] < 0):
            return "unseen"
        if self.p is not None and not self.p <= ALPHA:
            return "unconfirmed"
        return "better" if (self.mean < 0) == (self.better_is == "smaller") else "worse"


def confidence(comparisons: int) -> float:
    """Return the confidence of each of several intervals that together miss with 5 % at most (Bonferroni)."""
    return 1 - ALPHA / max(comparisons, 1)


def by_client(name: str, first: Floats, second: Floats, comparisons: int) -> Contrast:
    """Return the mean of `second - first` [K] with the interval of Student's t over clients."""
    values = second - first
    return Contrast(name, float(values.mean()), t_interval(values, confidence(comparisons)))


def of_tails(name: str, first: Floats, second: Floats, percent: int, comparisons: int) -> Contrast:
    """Return the mean of the lowest `percent` % of `second` [K] minus that of `first`.

    The tails may be of different clients. The interval is the bootstrap's over clients, both sides drawn together.
    """
    k = len(first)
    draws = _MANY_DRAWS if k <= _MANY else client_draws(k)
    tails = [_tail(values, percent) for values in (first, second)]

    def statistic(counts: Floats) -> Floats:
        return tails[1](counts) - tails[0](counts)

    mean = float(statistic(np.ones((1, k)))[0])
    return Contrast(name, mean, interval(statistic, k, confidence(comparisons), draws))


def of_groups(name: str, group: Floats, others: Floats, comparisons: int) -> Contrast:
    """Return the mean of `group` [g] minus that of `others` [o], with Welch's interval over clients."""
    mean = float(group.mean() - others.mean())
    if min(len(group), len(others)) < FEWEST:
        return Contrast(name, mean, None)
    if np.ptp(group) == 0 and np.ptp(others) == 0:
        return Contrast(name, mean, (mean, mean))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Precision loss", RuntimeWarning)  # equal values have no variance
        tested = stats.ttest_ind(group, others, equal_var=False)
    low, high = tested.confidence_interval(confidence(comparisons))
    return Contrast(name, mean, (float(low), float(high)))


def by_seed(differences: Sequence[tuple[str, Floats, Better]], test: Test = "rank") -> list[Contrast]:
    """Return the means of differences over seeds, given with their names, values [n] and which values are better.

    Pass all that are told together: intervals (Student's t) and p values of `test` (Holm) are corrected for them all.
    """
    level = confidence(len(differences))
    corrected = holm([p_value_of(test, values) for _, values, _ in differences])
    return [
        Contrast(name, float(values.mean()), t_interval(values, level), float(p), better_is, len(values))
        for (name, values, better_is), p in zip(differences, corrected, strict=True)
    ]


def _tail(values: Floats, percent: int) -> Statistic:
    """Return the statistic "mean of the lowest `percent` % of `values`" [K]."""
    order = np.argsort(values, kind="stable")
    ordered, size = values[order], tail_size(len(values), percent)

    def statistic(counts: Floats) -> Floats:
        drawn = counts[:, order]
        before = drawn.cumsum(axis=1) - drawn
        return np.asarray(np.clip(size - before, 0, drawn) @ ordered / size)

    return statistic

"""The power of paired tests for normal differences: what n seeds detect, how many seeds it takes.

Power is the probability to reject in the direction of the true effect. That of the t test is exact (noncentral t
distribution). That of Wilcoxon's exact signed-rank test is up to SIMULATED pairs the share of DRAWS simulated samples,
whose generator depends on n alone; beyond, the rank sum is taken as normal with its exact mean and variance (Lehmann,
Nonparametrics: Statistical Methods Based on Ranks, 1975, section 4.2), which is wrong by up to 4 percentage points of
power.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import optimize, special, stats

from fedsim.analysis.opening.study import Test
from fedsim.analysis.statistics.bootstrap import FEWEST
from fedsim.analysis.statistics.paired.significance import ALPHA, rank_sums, smallest_p
from fedsim.common.arrays import Floats
from fedsim.common.rng import rng

POWER = 0.8
MOST_SEEDS = 100_000
"""Largest number of pairs that `seeds_needed` returns."""
SIMULATED, DRAWS = 25, 10_000
_EXACT = 200
"""Largest number of pairs for which the distribution of the rank sum is counted; beyond, it is taken as normal."""
_ROUNDING = 1e-12
_LARGEST_EFFECT = 1e6
"""In standard deviations; SciPy's noncentral t distribution has no value for much larger ones."""


def power(n: int, effect: float, alpha: float = ALPHA, test: Test = "rank") -> float:
    """Return the power of the two-sided test with `n` pairs at an effect of `effect` standard deviations.

    0 if no data of n pairs have a p value of `alpha` or less.
    """
    if test == "t":
        return _power_of_t(n, abs(effect), alpha)
    least = _critical(n, alpha)
    if least is None:
        return 0.0
    if n <= SIMULATED:
        return float(np.searchsorted(_least_effects(n, least), abs(effect), side="right")) / DRAWS
    mean, variance = _moments(n, abs(effect))
    return float(stats.norm.sf((least - 0.5 - mean) / math.sqrt(max(variance, _ROUNDING))))


def detectable_effect(n: int, alpha: float = ALPHA, wanted: float = POWER, test: Test = "rank") -> float:
    """Return the smallest effect at which `n` pairs have a power of `wanted`.

    In standard deviations of the differences. Infinite if no data of n pairs have a p value of `alpha` or less.
    """
    if n < _fewest(alpha, test):
        return math.inf
    if test == "rank" and n <= SIMULATED:
        least = _critical(n, alpha)
        assert least is not None
        return float(_least_effects(n, least)[math.ceil(wanted * DRAWS) - 1])
    high = 1.0
    while power(n, high, alpha, test) < wanted:
        high *= 2
    return float(optimize.brentq(lambda effect: power(n, effect, alpha, test) - wanted, 0.0, high))


def seeds_needed(
    effect: float, alpha: float = ALPHA, wanted: float = POWER, test: Test = "rank"
) -> int | None:
    """Return the smallest number of pairs, at least 3, with which the test has the power `wanted`.

    `effect` is the mean difference in standard deviations of the differences. None if the effect is 0 or NaN, or if
    more than MOST_SEEDS pairs would be needed.
    """
    if math.isnan(effect) or effect == 0:
        return None
    fewest = _fewest(alpha, test)
    if power(SIMULATED, effect, alpha, test) >= wanted:
        return next(n for n in range(fewest, SIMULATED + 1) if power(n, effect, alpha, test) >= wanted)
    low, high = max(SIMULATED, fewest - 1), MOST_SEEDS
    if power(high, effect, alpha, test) < wanted:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, effect, alpha, test) >= wanted else (middle, high)
    return high


def _fewest(alpha: float, test: Test) -> int:
    """Return the smallest number of pairs, at least 3, of which some data have a p value of `alpha` or less."""
    if test == "t":
        return FEWEST
    return next(n for n in range(FEWEST, MOST_SEEDS) if smallest_p(n) <= alpha)


def _power_of_t(n: int, effect: float, alpha: float) -> float:
    if n < FEWEST:
        return 0.0
    critical = stats.t.isf(alpha / 2, n - 1)
    return float(stats.nct.sf(critical, n - 1, min(effect, _LARGEST_EFFECT) * math.sqrt(n)))


@lru_cache(maxsize=256)
def _critical(n: int, alpha: float) -> int | None:
    """Return the smallest sum of positive ranks with a two-sided p value of `alpha` or less; None if there is none."""
    if smallest_p(n) > alpha:
        return None
    if n > _EXACT:
        spread = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return math.ceil(n * (n + 1) / 4 + 0.5 + float(stats.norm.isf(alpha / 2)) * spread)
    beyond = np.cumsum(rank_sums(range(1, n + 1))[::-1])[::-1]
    return int(np.flatnonzero(2 * beyond <= alpha + _ROUNDING)[0])


@lru_cache(maxsize=256)
def _least_effects(n: int, least: int) -> Floats:
    """Return [DRAWS], sorted: for each sample of n standard normal numbers the effect from which the test rejects it.

    The sum of positive ranks is the number of means of two observations, each with itself included, that are
    positive. So a shifted sample reaches the sum `least` where the shift exceeds minus the `least`-th largest mean.
    """
    first, second = np.triu_indices(n)
    effects = np.empty(DRAWS)
    generator, block = rng(0, "power", n), 500
    for start in range(0, DRAWS, block):
        sample = generator.standard_normal((block, n))
        means = (sample[:, first] + sample[:, second]) / 2
        at = means.shape[1] - least
        effects[start : start + block] = -np.partition(means, at, axis=1)[:, at]
    effects.sort()
    effects.setflags(write=False)
    return effects


def _moments(n: int, effect: float) -> tuple[float, float]:
    """Return mean and variance of the sum of positive ranks of `n` normal differences with this effect."""
    if math.isinf(effect):
        return n * (n + 1) / 2, 0.0
    shift = effect * math.sqrt(2)
    one, two = float(special.ndtr(effect)), float(special.ndtr(shift))  # P(X > 0), P(X + Y > 0)
    both = two - 2 * float(special.owens_t(shift, 1 / math.sqrt(3)))  # P(X + Y > 0, X + Z > 0)
    pairs, triples = n * (n - 1), n * (n - 1) * (n - 2)
    mean = n * one + pairs * two / 2
    # P(X > 0, X + Y > 0) is (one² + two) / 2.
    variance = n * one * (1 - one) + pairs * two * (1 - two) / 2 + triples * (both - two**2)
    return mean, variance + pairs * (one**2 + two - 2 * one * two)

"""Intervals by resampling: how far a number could lie elsewhere, had other seeds or other clients been drawn.

The generator is derived from the number of observations alone, so equal data give equal intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from scipy import stats

from fedsim.analysis.opening.arrays import Floats
from fedsim.common import arguments
from fedsim.common.errors import ConfigError
from fedsim.common.rng import rng

Statistic = Callable[[Floats], Floats]
"""Given how often each of n observations was drawn, [b, n], it returns [b] values."""
FEWEST = 3
"""Observations below which no interval is given: two numbers do not tell how far a third may lie."""
FEW_NOTE = "Those of fewer than 6 clients cover less than 95 %."
"""What to say beside intervals of groups that may be small; `docs/statistics.md` has how much they cover."""
_NUMBERS_AT_ONCE = 2_000_000


@arguments.checked
def interval(
    statistic: Statistic, n: int, confidence: float = 0.95, draws: int = 10_000
) -> tuple[float, float] | None:
    """Return the expanded percentile interval of a statistic of `n` observations; None below FEWEST.

    Observations are drawn with replacement, `draws` times. The plain percentile interval is too narrow for few
    observations, as it divides by n instead of n - 1 and knows no t distribution. So its levels are moved outwards to
    `Phi(-sqrt(n / (n - 1)) t)`, t being the quantile of Student's t with n - 1 degrees of freedom (Hesterberg, "What
    Teachers Should Know About the Bootstrap", The American Statistician 69, 2015, section 5.3). For many observations
    that is the percentile interval again. Draws for which the statistic is not defined (NaN) are left out; None if
    they are more than half.
    """
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence: expected a number between 0 and 1, found {confidence}")
    if draws < 1:
        raise ConfigError(f"draws: expected at least 1, found {draws}")
    if n < FEWEST:
        return None
    values = np.concatenate([_values(statistic, counts) for counts in _blocks(n, draws)])
    values = np.sort(values[~np.isnan(values)])
    if 2 * len(values) <= draws:
        return None
    tail = stats.norm.cdf(np.sqrt(n / (n - 1)) * stats.t.ppf((1 - confidence) / 2, n - 1))
    # By position, not by interpolation: values may be infinite where a variance in the denominator is 0.
    at = int(np.floor(tail * len(values)))
    return float(values[at]), float(values[len(values) - 1 - at])


def _values(statistic: Statistic, counts: Floats) -> Floats:
    values = np.asarray(statistic(counts))
    if values.shape != counts.shape[:1]:
        raise ConfigError(
            f"statistic: expected {len(counts)} values, one for each draw, found the shape {list(values.shape)}"
        )
    return values


@arguments.checked
def mean_of(values: Floats) -> Statistic:
    """Return the statistic "mean of `values`" [n]."""
    return lambda counts: np.asarray(counts @ values / counts.sum(axis=1))


def client_draws(n: int) -> int:
    """Return how often to resample n clients: fewer times where there are thousands, whose intervals are narrow."""
    return min(2000, max(500, 5_000_000 // max(n, 1)))


def _blocks(n: int, draws: int) -> Iterator[Floats]:
    """Return [draws, n] how often each observation is in each resample of n, in blocks that fit into memory."""
    if draws * n <= _NUMBERS_AT_ONCE:
        yield _kept(n, draws)
        return
    generator, block = rng(0, "bootstrap", n), max(1, _NUMBERS_AT_ONCE // n)
    for first in range(0, draws, block):
        yield _counts(generator, min(block, draws - first), n)


@lru_cache(maxsize=8)
def _kept(n: int, draws: int) -> Floats:
    """Return the same for few observations in one block: a study asks for as many again and again."""
    counts = _counts(rng(0, "bootstrap", n), draws, n)
    counts.setflags(write=False)
    return counts


def _counts(generator: np.random.Generator, draws: int, n: int) -> Floats:
    """Return [draws, n] how often each observation is in each resample of n."""
    drawn = generator.integers(0, n, (draws, n)) + n * np.arange(draws)[:, None]
    return np.bincount(drawn.ravel(), minlength=draws * n).reshape(draws, n).astype(np.float64)

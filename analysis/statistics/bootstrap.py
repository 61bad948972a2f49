"""Bootstrap intervals over seeds or clients.

The generator is derived from the number of observations alone, so equal data give equal intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from scipy import stats

from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import ConfigError
from fedsim.common.rng import rng

Statistic = Callable[[Floats], Floats]
"""Takes how often each of n observations was drawn, [b, n], and returns [b] values."""
FEWEST = 3
"""Fewest observations for which an interval is given."""
LEAST_CLIENTS = 5
"""Fewest clients of a run for which an interval of an audit or a correlation is given."""
FEW_NOTE = "Those of ten or fewer cover less than 95 %."
"""The note under intervals of groups that may be small; `docs/statistics.md` has their coverage."""
_NUMBERS_AT_ONCE = 2_000_000


@arguments.checked
def interval(
    statistic: Statistic,
    n: int,
    confidence: float = 0.95,
    draws: int = 10_000,
    clusters: Ints | None = None,
) -> tuple[float, float] | None:
    """Return the expanded percentile interval of a statistic of `n` observations; None below FEWEST.

    Observations are drawn with replacement, `draws` times. `clusters` [n] are numbers: observations with equal ones are
    alike and drawn together, and n is the number of clusters in what follows. The plain percentile interval is too
    narrow for few observations, so its levels move outwards (see `ends`); for many observations this is the percentile
    interval. Draws without a value (NaN) are left out; if they are more than half, the result is None. Raises
    ConfigError if `confidence` does not lie between 0 and 1, or `draws` is below 1.
    """
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence: expected a number between 0 and 1, found {confidence}")
    if draws < 1:
        raise ConfigError(f"draws: expected at least 1, found {draws}")
    units, unit = (n, None) if clusters is None else _numbered(clusters)
    if units < FEWEST:
        return None
    drawn = (counts if unit is None else counts[:, unit] for counts in _blocks(units, draws, n))
    return ends(np.concatenate([_values(statistic, counts) for counts in drawn]), units, confidence)


def ends(values: Floats, n: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the ends of the interval from bootstrap `values` [draws] of `n` units; None if most of them are NaN.

    The percentile interval divides by n instead of n - 1 and ignores the t distribution. So its levels move outwards to
    `Phi(-sqrt(n / (n - 1)) t)`, with t the quantile of Student's t with n - 1 degrees of freedom (Hesterberg, "What
    Teachers Should Know About the Bootstrap", The American Statistician 69, 2015, section 5.3).
    """
    known = np.sort(values[~np.isnan(values)])
    if 2 * len(known) <= len(values):
        return None
    tail = stats.norm.cdf(np.sqrt(n / (n - 1)) * stats.t.ppf((1 - confidence) / 2, n - 1))
    # By position, not by interpolation: values may be infinite where a variance in the denominator is 0.
    at = int(np.floor(tail * len(known)))
    return float(known[at]), float(known[len(known) - 1 - at])


def _numbered(clusters: Ints) -> tuple[int, Ints]:
    """Return the number of clusters, and [n] each observation's as a number from 0 on."""
    names, number = np.unique(clusters, return_inverse=True)
    return len(names), number


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


def spread_of(values: Floats) -> dict[str, float]:
    """Return `mean` and `std` (divided by n - 1) of `values` [n], one per seed, and the mean's interval, `low`, `high`.

    NaN where there are too few seeds.
    """
    n = len(values)
    mean = float(values.mean()) if n else np.nan
    std = sample_std(values)
    low, high = interval(mean_of(values), n) or (np.nan, np.nan)
    return {"mean": mean, "std": std, "low": low, "high": high}


def sample_std(values: Floats) -> float:
    """Return the standard deviation of `values` [n], divided by n - 1; NaN for n < 2.

    Exactly 0 for values that differ by floating-point error alone, and for equal ones, which rounding of the mean would
    miss.
    """
    if len(values) < 2:
        return float("nan")
    equal = np.ptp(values) <= 1e-12 * np.abs(values).max()
    return 0.0 if equal else float(values.std(ddof=1))


def client_draws(n: int) -> int:
    """Return the number of resamples for n clients: fewer for thousands of clients, whose intervals are narrow."""
    return min(2000, max(500, 5_000_000 // max(n, 1)))


def _blocks(n: int, draws: int, width: int) -> Iterator[Floats]:
    """Yield blocks of [draws, n] how often each unit is in each resample.

    They are small enough for memory, also as [draws, width].
    """
    if draws * width <= _NUMBERS_AT_ONCE:
        yield _cached_counts(n, draws)
        return
    generator, block = rng(0, "bootstrap", n), max(1, _NUMBERS_AT_ONCE // width)
    for first in range(0, draws, block):
        yield _counts(generator, min(block, draws - first), n)


@lru_cache(maxsize=8)
def _cached_counts(n: int, draws: int) -> Floats:
    """Return `_counts` for few observations, cached: a study asks for the same number many times."""
    counts = _counts(rng(0, "bootstrap", n), draws, n)
    counts.setflags(write=False)
    return counts


def _counts(generator: np.random.Generator, draws: int, n: int) -> Floats:
    """Return [draws, n] how often each observation is in each resample of n."""
    drawn = generator.integers(0, n, (draws, n)) + n * np.arange(draws)[:, None]
    return np.bincount(drawn.ravel(), minlength=draws * n).reshape(draws, n).astype(np.float64)

"""Laws of the lengths of spells, and hours of the day in which spells pass faster.

A law is given by its cumulative hazard H, with H(u) = -log P(longer than u). A length is drawn as the u with H(u) = E,
E exponential with mean 1. Lengths are in hours. Hours of the day have multipliers: a spell ends when a clock that runs
m times as fast in such an hour has advanced by its length.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import special

from fedsim.common.arrays import Floats
from fedsim.common.units import HOUR_US

HOURS = 24
LONGEST_H = 1e9
"""Longest length; longer ones are cut to it."""
_GAMMA_LIMIT = 650.0
_LEAST = 1e-300
_HAZARDS = np.concatenate([[0.0], np.geomspace(1e-7, 45.0, 400)])
"""Values of a cumulative hazard at which remainders are tabulated."""


@dataclass(frozen=True, slots=True)
class Standard:
    """A law at scale 1, as functions of (x or hazard, shape)."""

    mean: Callable[[float], float]
    hazard: Callable[[Floats, float], Floats]
    """Cumulative hazard H(x)."""
    log_density: Callable[[Floats, float], Floats]
    inverse: Callable[[Floats, float], Floats]
    """The x at which H reaches a value."""


def _gamma_hazard(x: Floats, k: float) -> Floats:
    below, above = special.gammainc(k, x), special.gammaincc(k, x)
    far = x - (k - 1) * np.log(np.maximum(x, _LEAST)) + special.gammaln(k)
    tail = np.where(above > 1e-290, -np.log(np.maximum(above, _LEAST)), far)
    return np.asarray(np.where(below < 0.5, -np.log1p(-np.minimum(below, 0.5)), tail))


def _gamma_inverse(e: Floats, k: float) -> Floats:
    small = special.gammaincinv(k, -np.expm1(-np.minimum(e, 0.7)))
    return np.asarray(np.where(e < 0.7, small, special.gammainccinv(k, np.exp(-np.minimum(e, _GAMMA_LIMIT)))))


def _lognormal_hazard(x: Floats, sigma: float) -> Floats:
    return np.asarray(-special.log_ndtr(-np.log(np.maximum(x, _LEAST)) / sigma))


def _lognormal_log_density(x: Floats, sigma: float) -> Floats:
    log = np.log(np.maximum(x, _LEAST))
    return np.asarray(-log - math.log(sigma * math.sqrt(2 * math.pi)) - (log / sigma) ** 2 / 2)


_STANDARDS = {
    "exponential": Standard(lambda _: 1.0, lambda x, _: x, lambda x, _: -x, lambda e, _: e),
    "weibull": Standard(
        lambda k: math.gamma(1 + 1 / k),
        lambda x, k: x**k,
        lambda x, k: np.asarray(math.log(k) + (k - 1) * np.log(np.maximum(x, _LEAST)) - x**k),
        lambda e, k: e ** (1 / k),
    ),
    "gamma": Standard(
        lambda k: k,
        _gamma_hazard,
        lambda x, k: np.asarray(special.xlogy(k - 1, x) - x - special.gammaln(k)),
        _gamma_inverse,
    ),
    "lognormal": Standard(
        lambda sigma: math.exp(sigma**2 / 2),
        _lognormal_hazard,
        _lognormal_log_density,
        lambda e, sigma: np.asarray(np.exp(-sigma * special.ndtri_exp(-e))),
    ),
    "constant": Standard(
        lambda _: 1.0,
        lambda x, _: np.where(x < 1, 0.0, np.inf),
        lambda x, _: np.full_like(x, np.nan),
        lambda e, _: np.where(np.asarray(e) > 0, 1.0, 0.0),
    ),
}
LAWS = tuple(_STANDARDS)


@dataclass(frozen=True, slots=True)
class Hazard:
    """A law of lengths: one of `LAWS`, its mean in hours, and its shape.

    The shape is the exponent of a `weibull`, the k of a `gamma`, the sigma of the logarithm of a `lognormal`; other
    laws have none.
    """

    name: str
    mean_h: float
    shape: float = 1.0

    @property
    def scale_h(self) -> float:
        """The length that is 1 in the law's standard form."""
        return self.mean_h / _STANDARDS[self.name].mean(self.shape)

    def cumulative(self, length_h: Floats) -> Floats:
        """Return the cumulative hazard at lengths."""
        return _STANDARDS[self.name].hazard(np.asarray(length_h) / self.scale_h, self.shape)

    def log_density(self, length_h: Floats) -> Floats:
        """Return the logarithm of the density, per hour, at lengths."""
        standard = _STANDARDS[self.name].log_density(np.asarray(length_h) / self.scale_h, self.shape)
        return np.asarray(standard - math.log(self.scale_h))

    def inverse(self, hazard: Floats | float) -> Floats:
        """Return the lengths at which the cumulative hazard reaches given values, at most LONGEST_H."""
        standard = _STANDARDS[self.name].inverse(np.asarray(hazard, dtype=np.float64), self.shape)
        return np.minimum(self.scale_h * standard, LONGEST_H)

    def remainder(self) -> Remainder:
        """Return the law of the remainder of a length at a random instant."""
        length = self.inverse(_HAZARDS)
        steps = np.diff(length) * (np.exp(-_HAZARDS[1:]) + np.exp(-_HAZARDS[:-1])) / 2
        return Remainder(length, np.concatenate([[0.0], np.cumsum(steps)]))


@dataclass(frozen=True, slots=True)
class Remainder:
    """The remainder of a length at a random instant: its density is P(longer than u) / mean."""

    length_h: Floats
    area_h: Floats
    """The integral of P(longer than u) up to each length."""

    def at(self, quantile: float) -> float:
        """Return a quantile in hours."""
        return float(np.interp(quantile * self.area_h[-1], self.area_h, self.length_h))


@dataclass(frozen=True, slots=True)
class Day:
    """A clock that runs `multipliers[h]` times as fast in hour h of each day; evenly without multipliers."""

    multipliers: tuple[float, ...] = ()
    _shown_h: tuple[float, ...] = field(init=False, repr=False)
    """What the clock shows at the start of each hour of the first day, and at its end."""

    def __post_init__(self) -> None:
        shown_h = np.concatenate([[0.0], np.cumsum(self.multipliers)])
        object.__setattr__(self, "_shown_h", tuple(shown_h.tolist()))

    def told_h(self, time_us: NDArray[np.int64]) -> Floats:
        """Return what the clock shows at instants, in hours since 0."""
        if not self.multipliers:
            return np.asarray(time_us / HOUR_US)
        days, rest = np.divmod(time_us, HOURS * HOUR_US)
        within = np.interp(rest / HOUR_US, np.arange(HOURS + 1), self._shown_h)
        return np.asarray(days * self._shown_h[-1] + within)

    def after(self, now_us: int, hours: float) -> int:
        """Return when the clock has advanced by `hours`, at least a microsecond after now."""
        if not self.multipliers:
            return now_us + max(1, round(hours * HOUR_US))
        day, rest = divmod(now_us, HOURS * HOUR_US)
        hour, part = divmod(rest, HOUR_US)
        reached = self._shown_h[hour] + self.multipliers[hour] * part / HOUR_US + hours
        days, left = divmod(reached, self._shown_h[-1])
        at = min(bisect_right(self._shown_h, left) - 1, HOURS - 1)
        passed_h = at + (left - self._shown_h[at]) / self.multipliers[at]
        return max(now_us + 1, (day + int(days)) * HOURS * HOUR_US + round(passed_h * HOUR_US))

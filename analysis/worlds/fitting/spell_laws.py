"""Fit the law of spell lengths and the spread between clients by maximum likelihood.

Lengths without a known end are right-censored. A client's lengths are drawn from the law times the client's factor,
which is log-normal over clients; the likelihood of a client is the mean over factors, by adaptive Gauss-Hermite
quadrature (Liu and Pierce, "A note on Gauss-Hermite quadrature", 1994). Akaike's criterion compares laws.

The lengths of a sampled trace are uncertain by a step. Their likelihood is D exp(-(H + D / 2)), with H the cumulative
hazard before the step and D the hazard within it: a close lower bound of exp(-H) (1 - exp(-D)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from fedsim.common.arrays import Floats, Ints
from fedsim.scenarios.processes.hazards import Hazard

LEAST_CLIENTS = 5
"""Fewest clients for which a spread between clients is fitted."""
CONSTANT_TOLERANCE = 0.01
_TO_CHOOSE = 2_000
"""Number of lengths used to choose a law; its parameters are fitted to all lengths."""
_SHAPES = {
    "exponential": None,
    "weibull": (1.0, 0.1, 50.0),
    "gamma": (1.0, 0.05, 200.0),
    "lognormal": (1.0, 0.02, 5.0),
}
"""By law: initial value and bounds of the shape; None for laws without one."""
_SPREADS = (0.5, 0.01, 3.0)
_NODES, _WEIGHTS = np.polynomial.hermite.hermgauss(9)
_EPSILON = 0.01
_MOST_STEPS, _NEAR = 30, 1e-6
_IMPOSSIBLE = 1e15
_LEAST = 1e-300


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of spells of one state."""

    hours: Floats
    client: Ints
    """Numbered from 0 without gaps."""
    ended: NDArray[np.bool_]
    step: Floats
    """Width in hours of the interval around `hours` that contains the length of an ended spell; 0 if exact."""

    @property
    def clients(self) -> int:
        """Number of clients."""
        return int(self.client.max()) + 1 if len(self.client) else 0

    def thinned(self, most: int) -> Lengths:
        """Return the lengths of every nth client, with n such that about `most` lengths remain."""
        every = -(-len(self.hours) // most)
        kept = self.client % every == 0
        return Lengths(self.hours[kept], self.client[kept] // every, self.ended[kept], self.step[kept])


@dataclass(frozen=True, slots=True)
class LawFit:
    """A law fitted to lengths."""

    law: Hazard
    spread: float
    """Standard deviation of the logarithm of clients' factors; 0 if they do not differ."""
    aic: float
    """Akaike's criterion, lower is better; NaN for constant lengths."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Estimates of the logarithm of each client's factor."""

    mode: Floats
    """[clients] the most probable value, given lengths and spread."""
    value: Floats
    """[clients] an approximate estimate from the client's lengths alone."""
    variance: Floats
    """[clients] the variance of `value`; infinite if clients do not differ."""


def fit_law(lengths: Lengths, names: Sequence[str] = tuple(_SHAPES)) -> LawFit:
    """Return the law with the lowest criterion, with a spread between clients if that lowers it.

    At least one length must have a known end. Lengths equal within 1 % follow the law `constant`.
    """
    ended = lengths.hours[lengths.ended]
    if np.ptp(ended) <= CONSTANT_TOLERANCE * ended.mean():
        return LawFit(Hazard("constant", float(ended.mean())), 0.0, math.nan)
    some = lengths.thinned(_TO_CHOOSE)
    if not some.ended.any():
        some = lengths
    spreads = (False, True) if some.clients >= LEAST_CLIENTS else (False,)
    fits = [_fitted(some, name, spread) for name in names for spread in spreads]
    best = min(fits, key=lambda fit: fit.aic)
    if len(some.hours) == len(lengths.hours):
        return best
    return _fitted(lengths, best.law.name, best.spread > 0)


def factors(lengths: Lengths, fit: LawFit) -> Factors:
    """Return the estimates of clients' factors under a fitted law."""
    if fit.law.name == "constant" or fit.spread == 0:
        zeros = np.zeros(lengths.clients)
        return Factors(zeros, zeros, np.full(lengths.clients, np.inf))
    mode, _ = _mode(lengths, fit.law, fit.spread, np.zeros(lengths.clients))
    _, slope, curvature = _around(lengths, fit.law, mode)
    information = np.maximum(-curvature, 1e-9)
    return Factors(mode, mode + slope / information, 1 / information)


def _fitted(lengths: Lengths, name: str, with_spread: bool) -> LawFit:
    shape = _SHAPES[name]
    mean = float(lengths.hours.sum() / lengths.ended.sum())
    start, bounds = [math.log(mean)], [(math.log(mean) - 5, math.log(mean) + 5)]
    for parameter in (shape, _SPREADS if with_spread else None):
        if parameter is not None:
            start.append(math.log(parameter[0]))
            bounds.append((math.log(parameter[1]), math.log(parameter[2])))

    def read(logs: Floats) -> tuple[Hazard, float]:
        values = np.exp(logs).tolist()
        spread = values.pop() if with_spread else 0.0
        return Hazard(name, *values), spread

    with threadpool_limits(1, "blas"):  # threads cost more than they bring, and their number must not matter
        best = minimize(_cost(lengths, read), np.array(start), method="L-BFGS-B", bounds=bounds)
    law, spread = read(best.x)
    return LawFit(law, spread, 2 * float(best.fun) + 2 * len(start))


def _cost(lengths: Lengths, read: Callable[[Floats], tuple[Hazard, float]]) -> Callable[[Floats], float]:
    mode = np.zeros(lengths.clients)

    def cost(logs: Floats) -> float:
        law, spread = read(logs)
        if spread > 0:
            # A few steps suffice from the mode of the previous call.
            mode[:], curvature = _mode(lengths, law, spread, mode)
            total = _log_mean(lengths, law, spread, mode, curvature).sum()
        else:
            total = _log_likelihood(lengths, law, np.zeros(lengths.clients)).sum()
        return -float(total) if math.isfinite(total) else _IMPOSSIBLE

    return cost


def _log_likelihood(lengths: Lengths, law: Hazard, log_factor: Floats) -> Floats:
    """Return [clients] the logarithm of the likelihood, given each client's factor."""
    scale, ended = np.exp(-log_factor)[lengths.client], lengths.ended
    hours, terms = lengths.hours * scale, np.empty_like(scale)
    terms[~ended] = -law.cumulative(hours[~ended])
    if lengths.step.any():
        half = (lengths.step * scale / 2)[ended]
        low, high = np.maximum(hours[ended] - half, 0.0), hours[ended] + half
        before, after = law.cumulative(low), law.cumulative(high)
        terms[ended] = np.log(np.maximum(after - before, _LEAST) / (high - low)) - (before + after) / 2
    else:
        terms[ended] = law.log_density(hours[ended])
    terms[ended] -= log_factor[lengths.client[ended]]
    return np.asarray(np.bincount(lengths.client, terms, minlength=lengths.clients), dtype=np.float64)


def _around(lengths: Lengths, law: Hazard, at: Floats) -> tuple[Floats, Floats, Floats]:
    """Return [clients] the logarithm of the likelihood at log factors, its slope and its curvature."""
    left, middle, right = (_log_likelihood(lengths, law, at + e) for e in (-_EPSILON, 0.0, _EPSILON))
    return middle, (right - left) / (2 * _EPSILON), (right - 2 * middle + left) / _EPSILON**2


def _mode(lengths: Lengths, law: Hazard, spread: float, start: Floats) -> tuple[Floats, Floats]:
    """Return the most probable log factors, by Newton's method with bounded steps, and the curvature there."""
    at, tightness = start, 1 / spread**2
    for _ in range(_MOST_STEPS):
        _, slope, curvature = _around(lengths, law, at)
        curvature = np.minimum(curvature, 0.0)
        step = np.clip((slope - at * tightness) / (tightness - curvature), -1.0, 1.0)
        at = np.clip(at + step, -6 * spread, 6 * spread)
        if np.abs(step).max(initial=0.0) < _NEAR:
            break
    return at, curvature


def _log_mean(lengths: Lengths, law: Hazard, spread: float, mode: Floats, curvature: Floats) -> Floats:
    """Return [clients] the logarithm of the mean likelihood over log factors, normal with deviation `spread`."""
    width = 1 / np.sqrt(1 / spread**2 - curvature)
    at = mode + math.sqrt(2) * width * _NODES[:, None]  # [nodes, clients]
    exponent = np.array([_log_likelihood(lengths, law, row) for row in at]) - (at / spread) ** 2 / 2
    highest = exponent.max(axis=0)
    weights = (_WEIGHTS * np.exp(_NODES**2))[:, None]
    total = (weights * np.exp(exponent - highest)).sum(axis=0)
    return np.asarray(highest + np.log(total * width / (spread * math.sqrt(math.pi))))

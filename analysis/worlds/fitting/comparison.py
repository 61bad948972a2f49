"""Agreement of a simulated world with a trace: distances between both, and verdicts on them.

`chance` is about the distance between two worlds of the same law; a smaller distance is no evidence against the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.analysis.worlds.difference import ks_distance
from fedsim.analysis.worlds.fitting.portrait import FEW_CLIENTS, Curve, Portrait, portrait
from fedsim.analysis.worlds.fitting.spells import spells_of
from fedsim.common import arguments
from fedsim.common.units import HOUR_US
from fedsim.worlds.trace import Trace

LAGS_H = (1, 6, 12, 24)
_MOST_CLIENT_HOURS = 4_000_000
_CLOSE, _FAIR = 0.05, 0.1


@dataclass(frozen=True, slots=True)
class Statistic:
    """One distance between two worlds."""

    name: str
    measure: str
    """Name of the distance."""
    distance: float
    """NaN if it cannot be measured."""
    chance: float
    n: int
    of: str
    """The unit of `n`, in the plural."""

    @property
    def verdict(self) -> str:
        """`close`, `within chance`, `fair` or `far`, or `not measured`."""
        if math.isnan(self.distance):
            return "not measured"
        if self.distance <= max(_CLOSE, min(self.chance, _FAIR)):
            return "close"
        if self.distance <= self.chance:
            return "within chance"
        return "fair" if self.distance <= max(_FAIR, 1.5 * self.chance) else "far"

    def __str__(self) -> str:
        of = self.of.removesuffix("s") if self.n == 1 else self.of
        if math.isnan(self.distance):
            return f"{self.name}: not measured ({self.n:,} {of})"
        return (
            f"{self.name}: {self.measure} {self.distance:.3f} (n = {self.n:,} {of}; by chance up to "
            f"{self.chance:.2g}): {self.verdict}"
        )


@dataclass(frozen=True, slots=True)
class FitComparison:
    """A trace compared with a world simulated from its fit."""

    trace: Portrait
    simulated: Portrait
    statistics: tuple[Statistic, ...]


@arguments.checked
def compare_fit(trace: Trace, simulated: Trace) -> FitComparison:
    """Compare a trace with a simulated world of as many clients, observed with the trace's gaps.

    Raises TraceError if the worlds differ in their number of clients.
    """
    every = -(-trace.clients * max(trace.horizon_us // HOUR_US, 1) // _MOST_CLIENT_HOURS)
    both = [spells_of(world, seen_as=trace) for world in (trace, simulated)]
    seen, fitted = (portrait(spells.of(spells.client % every == 0), trace.horizon_us) for spells in both)
    return FitComparison(seen, fitted, _statistics(seen, fitted))


def _statistics(seen: Portrait, fitted: Portrait) -> tuple[Statistic, ...]:
    lengths = [
        _lengths(f"{name} lengths", a, b)
        for name, a, b in (("on", seen.on, fitted.on), ("off", seen.off, fitted.off))
    ]
    return (*lengths, _shares(seen, fitted), *_days(seen, fitted), *_autocorrelations(seen, fitted))


def _lengths(name: str, a: Curve, b: Curve) -> Statistic:
    if not (len(a.hours) and len(b.hours)):
        return Statistic(name, "KS", math.nan, math.nan, a.n_ended, "ended")
    times = np.unique(np.concatenate([a.hours, b.hours]))
    times = times[times <= min(a.hours[-1], b.hours[-1])]
    distance = float(np.abs(a.at(times) - b.at(times)).max(initial=0.0))
    return Statistic(name, "KS", distance, _ks_chance(a.n, b.n), a.n_ended, "ended")


def _shares(seen: Portrait, fitted: Portrait) -> Statistic:
    a, b = seen.shares, fitted.shares
    if min(len(a), len(b)) < FEW_CLIENTS:
        return Statistic("online shares", "KS", math.nan, math.nan, len(a), "clients")
    return Statistic("online shares", "KS", ks_distance(a, b), _ks_chance(len(a), len(b)), len(a), "clients")


def _ks_chance(n: int, m: int) -> float:
    """Return the distance that two samples of one law exceed in 5 % of cases (Smirnov, 1948)."""
    return 1.36 * math.sqrt(1 / n + 1 / m)


def _days(seen: Portrait, fitted: Portrait) -> Sequence[Statistic]:
    n = len(seen.shares)
    if not len(seen.day):
        return [Statistic("hours of the day", "difference", math.nan, math.nan, n, "clients")]
    difference = np.abs(seen.day - fitted.day)
    error = np.hypot(seen.day_error, fitted.day_error)
    return [
        Statistic(
            "hours of the day, at most",
            "difference",
            float(np.nanmax(difference)),
            3 * float(np.nanmax(error)),
            n,
            "clients",
        ),
        Statistic(
            "hours of the day, mean",
            "difference",
            float(np.nanmean(difference)),
            2 * float(np.nanmean(error)),
            n,
            "clients",
        ),
    ]


def _autocorrelations(seen: Portrait, fitted: Portrait) -> list[Statistic]:
    cycles = max(seen.on.n, 1)
    chance = 2 * math.sqrt(2 / cycles)
    return [
        Statistic(
            f"autocorrelation at {lag} h",
            f"{seen.autocorrelation[lag]:.3f} against {fitted.autocorrelation[lag]:.3f}, difference",
            float(abs(seen.autocorrelation[lag] - fitted.autocorrelation[lag])),
            chance,
            cycles,
            "spells",
        )
        for lag in LAGS_H
    ]

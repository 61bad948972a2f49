"""Statistics of a world's availability: spell lengths, clients' online shares, hours of the day, autocorrelation.

Lengths are Kaplan-Meier curves (Kaplan and Meier, "Nonparametric estimation from incomplete observations", 1958),
since many spells have no known end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsim.analysis.worlds.fitting.spells import HOURS, Spells, parts_of
from fedsim.common.arrays import Floats, Ints, Mask
from fedsim.common.units import DAY_US, HOUR_US

CURVE_LAGS_H = tuple(range(49))
FEW_CLIENTS = 5
"""With fewer clients, standard errors are over days instead of clients."""
_STEP_US = HOUR_US // 4
_LEAST_AT_RISK = 10


@dataclass(frozen=True, slots=True)
class Curve:
    """The share of spells that last longer than each time."""

    hours: Floats
    longer: Floats
    n: int
    """Number of spells with a known start; `n_ended` of them have a known end."""
    n_ended: int

    def at(self, hours: Floats) -> Floats:
        """Return the share of spells that last longer than each time."""
        return np.concatenate([[1.0], self.longer])[np.searchsorted(self.hours, hours, side="right")]


@dataclass(frozen=True, slots=True)
class Portrait:
    """Statistics of a world's availability."""

    on: Curve
    off: Curve
    shares: Floats
    """Online share of each observed client, sorted."""
    day: Floats
    """[24] share of time online in each hour of the day; empty for worlds shorter than a day."""
    day_error: Floats
    """[24] standard error of `day` over clients, or over days with few clients."""
    autocorrelation: Floats
    """Autocorrelation of being online at lags of CURVE_LAGS_H hours; NaN where the trace is too short."""


def portrait(spells: Spells, horizon_us: int) -> Portrait:
    """Return the statistics of a world's spells."""
    share = spells.online_share()
    day, error = _day(spells) if horizon_us >= DAY_US else (np.empty(0), np.empty(0))
    on, off = (_curve(spells.of(spells.began & (spells.online == online))) for online in (True, False))
    return Portrait(
        on, off, np.sort(share[~np.isnan(share)]), day, error, _autocorrelation(spells, horizon_us)
    )


def _curve(spells: Spells) -> Curve:
    hours = spells.length_us / HOUR_US
    times, index = np.unique(hours[spells.ended], return_inverse=True)
    ends = np.bincount(index, minlength=len(times))
    at_risk = len(hours) - np.searchsorted(np.sort(hours), times, side="left")
    known = at_risk >= min(_LEAST_AT_RISK, len(hours))
    longer = np.cumprod(1 - ends[known] / at_risk[known], dtype=np.float64)
    return Curve(times[known], longer, len(hours), int(spells.ended.sum()))


def _day(spells: Spells) -> tuple[Floats, Floats]:
    """Return the share of time online in each hour, and its standard error.

    The error is that of a ratio of sums over clients, or over days if there are few clients.
    """
    parts, few = parts_of(spells), len(np.unique(spells.client)) < FEW_CLIENTS
    group = parts.start_us // DAY_US if few else spells.client[parts.spell]
    cell, groups = group * HOURS + parts.hour, int(group.max()) + 1
    length = (parts.end_us - parts.start_us) / HOUR_US
    seen = np.bincount(cell, length, minlength=groups * HOURS).reshape(groups, HOURS)
    online = np.bincount(cell, length * spells.online[parts.spell], minlength=groups * HOURS)
    online = online.reshape(groups, HOURS)
    total = seen.sum(axis=0)
    mean = online.sum(axis=0) / np.where(total > 0, total, np.nan)
    error = np.sqrt(((online - mean * seen) ** 2).sum(axis=0)) / np.where(total > 0, total, np.nan)
    return np.asarray(mean), np.asarray(error)


def _autocorrelation(spells: Spells, horizon_us: int) -> Floats:
    """Return the correlation, over clients and time, of being online now and after each lag."""
    step = _STEP_US if horizon_us <= 60 * DAY_US else HOUR_US
    clients = np.unique(spells.client)
    online, seen = _samples(spells, clients, np.arange(0, horizon_us, step))
    correlations = []
    for lag in CURVE_LAGS_H:
        k = lag * HOUR_US // step
        if k >= online.shape[1]:
            correlations.append(np.nan)
            continue
        both = seen[:, k:] & seen[:, : online.shape[1] - k]
        correlations.append(_correlation(online[:, : online.shape[1] - k][both], online[:, k:][both]))
    return np.array(correlations)


def _samples(spells: Spells, clients: Ints, times: Ints) -> tuple[Mask, Mask]:
    """Return [clients, times] whether each client is online, and whether it is observed."""
    axis = int(max(spells.end_us.max(initial=0), times[-1])) + 1
    asked = clients[:, None] * axis + times
    at = np.searchsorted(spells.client * axis + spells.start_us, asked, side="right") - 1
    seen = (at >= 0) & (asked < (spells.client * axis + spells.end_us)[at])
    return spells.online[at], seen


def _correlation(x: Mask, y: Mask) -> float:
    if not len(x):
        return math.nan
    p, q, both = x.mean(), y.mean(), (x & y).mean()
    spread = p * (1 - p) * q * (1 - q)
    return float((both - p * q) / math.sqrt(spread)) if spread > 0 else math.nan

"""Fit the speeds and faults of a trace's clients: the option `devices` of the scenario `fitted`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedsim.common.arrays import Floats
from fedsim.common.units import US
from fedsim.worlds.trace import MODELLED, Trace

_NAMES = {
    "compute": ("seconds_per_sample", "compute_sigma"),
    "downlink": ("downlink_bytes_per_s", "downlink_sigma"),
    "uplink": ("uplink_bytes_per_s", "uplink_sigma"),
}
_PAIRS = (("compute", "downlink"), ("compute", "uplink"), ("downlink", "uplink"))
LEAST_PAIRS = 3
MOST_SIGMA = 5.0


def device_options(trace: Trace) -> dict[str, Any]:
    """Return the options: medians, sigmas and correlations of clients' geometric mean speeds, and faults."""
    logs = {kind: _log_means(trace, kind) for kind in MODELLED}
    modelled = [kind for kind in MODELLED if not np.isnan(logs[kind]).all()]
    options: dict[str, Any] = {"modelled": modelled}
    for kind in modelled:
        seen = logs[kind][~np.isnan(logs[kind])]
        sigma = float(seen.std(ddof=1)) if len(seen) > 1 else 0.0
        options |= dict(zip(_NAMES[kind], (float(np.exp(seen.mean())), min(sigma, MOST_SIGMA)), strict=True))
    pairs = [pair for pair in _PAIRS if set(pair) <= set(modelled)]
    correlations = _consistent([_correlation(logs[first], logs[second]) for first, second in pairs])
    options |= {f"{first}_{second}": r for (first, second), r in zip(pairs, correlations, strict=True)}
    return options | _faults(trace)


def _log_means(trace: Trace, kind: str) -> Floats:
    """Return [clients] the mean over time of the logarithm of a speed; NaN for clients without one."""
    spans, n = trace.spans(kind), trace.clients
    length = (spans.end_us - spans.start_us).astype(np.float64)
    total = np.bincount(spans.client, length, minlength=n)
    weighted = np.bincount(spans.client, length * np.log(spans.value), minlength=n)
    return np.asarray(np.divide(weighted, total, out=np.full(n, np.nan), where=total > 0))


def _correlation(first: Floats, second: Floats) -> float:
    both = ~(np.isnan(first) | np.isnan(second))
    a, b = first[both], second[both]
    if len(a) < LEAST_PAIRS or not (np.ptp(a) > 0 and np.ptp(b) > 0):
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _consistent(correlations: list[float]) -> list[float]:
    """Return correlations with three decimals, rounded towards 0, and shrunk until three are positive semidefinite.

    Rounding, or estimates from different clients for each pair of speeds, can make three correlations impossible.
    """
    shrunk: list[float] = []
    for percent in range(100, -1, -1):
        shrunk = [math.trunc(10 * percent * r) / 1000 for r in correlations]
        if len(shrunk) < 3 or 1 + 2 * math.prod(shrunk) >= sum(r * r for r in shrunk):
            break
    return shrunk


def _faults(trace: Trace) -> dict[str, Any]:
    """Return the mean time between faults and their mean length; cut-off faults count with their observed part."""
    faults = trace.spans("fault")
    if not len(faults.client):
        return {"fault_every": "never"}
    period = trace.period_us("fault")
    window = np.where(period > 0, period, trace.horizon_us)
    inside = float((faults.end_us - faults.start_us).sum())
    ended = max(int((faults.end_us < window[faults.client]).sum()), 1)
    started = max(int((faults.start_us > 0).sum()), 1)
    between_s = (float(window.sum()) - inside) / started / US
    if between_s <= 0:
        return {"fault_every": "never"}
    texts = (duration_text(between_s / 3600), duration_text(inside / ended / US / 3600))
    return dict(zip(("fault_every", "fault_length"), texts, strict=True))


def duration_text(hours: float) -> str:
    """Return a duration with five digits in the form that `fedsim.common.units.duration_us` reads: `1.25h`."""
    units = ((48.0, 24.0, "d"), (1.0, 1.0, "h"), (1 / 60, 1 / 60, "min"))
    scale, unit = next(((scale, unit) for least, scale, unit in units if hours >= least), (1 / 3600, "s"))
    return f"{hours / scale:.5g}{unit}"

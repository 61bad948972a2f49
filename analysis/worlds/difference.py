"""Differences between two worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedsim.analysis.worlds.summary import (
    gap_lengths_us,
    mean_speeds,
    session_lengths_us,
    sessions,
    written_out,
)
from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints
from fedsim.worlds.client_statistics import time_us
from fedsim.worlds.interval_arithmetic import cut, fused, of_rows
from fedsim.worlds.trace import KINDS, MODELLED, Spans, Trace
from fedsim.worlds.transforms import laps_us

PRESENCE = tuple(kind for kind in KINDS if kind not in MODELLED)
_SAMPLES: Mapping[str, Callable[[Trace], Floats | Ints]] = {
    "sessions": session_lengths_us,
    "gaps": gap_lengths_us,
    "online share": lambda trace: time_us(sessions(trace), trace.clients) / trace.horizon_us,
    "compute": lambda trace: mean_speeds(trace, "compute"),
    "downlink": lambda trace: mean_speeds(trace, "downlink"),
    "uplink": lambda trace: mean_speeds(trace, "uplink"),
}


@dataclass(frozen=True, slots=True)
class WorldDiff:
    """Differences between worlds A and B, over the clients (by number) and the time that both have."""

    clients: int
    span_us: int
    same: bool
    """Whether both worlds have the same digest."""
    disagreement: float
    """Share of the client-time in which a client is online in one world alone."""
    differing: int
    """Number of clients that are online in one world alone at some time."""
    first: tuple[int, int] | None
    """The earliest such time in microseconds, and the lowest such client then; None if there is none."""
    kinds: Mapping[str, tuple[int, int] | None]
    """By kind: client and start of the first interval, by client and time, that one table alone has; None if none."""
    distances: Mapping[str, float]
    """Kolmogorov-Smirnov distances between distributions over each whole world; NaN if a distribution is empty."""


@arguments.checked
def compare_worlds(a: Trace, b: Trace) -> WorldDiff:
    """Return the differences between two worlds."""
    clients, span_us = min(a.clients, b.clients), min(a.horizon_us, b.horizon_us)
    differ = _disagreement(_presence(a, clients, span_us), _presence(b, clients, span_us))
    first = None
    if len(differ.client):
        at = int(np.lexsort((differ.client, differ.start_us))[0])
        first = int(differ.start_us[at]), int(differ.client[at])
    return WorldDiff(
        clients=clients,
        span_us=span_us,
        same=a.digest() == b.digest(),
        disagreement=float(time_us(differ, clients).sum() / (clients * span_us)),
        differing=len(np.unique(differ.client)),
        first=first,
        kinds={kind: _first_other(a, b, kind) for kind in KINDS},
        distances={name: ks_distance(sample(a), sample(b)) for name, sample in _SAMPLES.items()},
    )


_ROUNDING = 1e-12
"""Relative difference of two values that rounding may explain."""


def ks_distance(a: Floats | Ints, b: Floats | Ints) -> float:
    """Return the largest difference between two empirical distribution functions, NaN if one is empty.

    Values that only rounding tells apart count as equal.
    """
    if not len(a) or not len(b):
        return float("nan")
    points = np.concatenate([a, b])
    points = points + _ROUNDING * np.abs(points)
    below_a = np.searchsorted(np.sort(a), points, side="right") / len(a)
    below_b = np.searchsorted(np.sort(b), points, side="right") / len(b)
    return float(np.abs(below_a - below_b).max())


def _presence(trace: Trace, clients: int, span_us: int) -> Spans:
    spans = cut(written_out(trace, "online"), 0, span_us)
    return of_rows(spans, spans.client < clients).joined()


def _disagreement(a: Spans, b: Spans) -> Spans:
    """Return where exactly one of two lists of intervals is active; intervals within a list must not touch."""
    client = np.concatenate([a.client, a.client, b.client, b.client])
    time = np.concatenate([a.start_us, a.end_us, b.start_us, b.end_us])
    order = np.lexsort((time, client))
    client, time = client[order], time[order]
    # Each boundary starts or ends a difference; every client has an even number of boundaries.
    start, end = time[::2], time[1::2]
    longer = start < end
    owner = client[::2][longer]
    return Spans(owner, start[longer], end[longer], np.ones(len(owner)))


def _first_other(a: Trace, b: Trace, kind: str) -> tuple[int, int] | None:
    first, second = _table(a, kind), _table(b, kind)
    shared = min(first.shape[1], second.shape[1])
    unequal = np.flatnonzero((first[:, :shared] != second[:, :shared]).any(axis=0))
    at = int(unequal[0]) if len(unequal) else shared
    rows = [t[:, at] for t in (first, second) if at < t.shape[1]]
    return min((int(row[0]), int(row[1])) for row in rows) if rows else None


def _table(trace: Trace, kind: str) -> Floats:
    """Return [5, intervals] client, start, end, value, and the time of its return, of each interval."""
    spans = fused(trace.spans(kind))
    lap = laps_us(trace, kind) if trace.after_end == "repeat" else trace.period_us(kind)
    value = np.ones(len(spans.client)) if kind in PRESENCE else spans.value
    return np.stack([spans.client, spans.start_us, spans.end_us, value, lap[spans.client]]).astype(np.float64)

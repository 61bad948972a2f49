"""What a trace holds, in numbers: who is online when and for how long, how fast and faulty clients are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Floats, Ints
from fedsim.trace import KINDS, MODELLED, Spans, Trace

QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class WorldSummary:
    """A trace in numbers. Quartiles are (lower, median, upper), NaN if there is nothing to take them of."""

    intervals: Mapping[str, int]
    """By kind."""
    online_mean: float
    """Share of the clients' time that they are online."""
    online_quartiles: Floats
    """Over clients, of the share of its time that a client is online."""
    never_online: int
    """Clients that are never online."""
    session_quartiles_us: Floats
    """Over sessions; one that the horizon cuts counts with the part that is seen."""
    gap_quartiles_us: Floats
    """Over the gaps between two sessions of a client."""
    speed_quartiles: Mapping[str, Floats]
    """By modelled kind: over clients, of the client's mean over time, in the unit of the kind."""
    faults: int
    fault_share: float
    """Share of the clients' time that they have a fault."""


def summarize(trace: Trace) -> WorldSummary:
    """Compute the numbers of a trace."""
    sessions, faults = trace.spans("online").joined(), trace.spans("fault")
    share = _time_us(sessions, trace.clients) / trace.horizon_us
    follows = sessions.client[1:] == sessions.client[:-1]
    gaps = (sessions.start_us[1:] - sessions.end_us[:-1])[follows]
    by_kind = {kind: trace.spans(kind) for kind in KINDS}
    return WorldSummary(
        intervals={kind: len(spans.client) for kind, spans in by_kind.items()},
        online_mean=float(share.mean()),
        online_quartiles=_quartiles(share),
        never_online=int((share == 0).sum()),
        session_quartiles_us=_quartiles(sessions.end_us - sessions.start_us),
        gap_quartiles_us=_quartiles(gaps),
        speed_quartiles={
            kind: _quartiles(_means(by_kind[kind], trace.clients))
            for kind in MODELLED
            if len(by_kind[kind].client)
        },
        faults=len(faults.client),
        fault_share=float(_time_us(faults, trace.clients).mean() / trace.horizon_us),
    )


def online_share(trace: Trace, bins: int) -> Floats:
    """Return [bins] the mean share of clients online in each of `bins` equal parts of the horizon."""
    sessions = trace.spans("online")
    edges = np.linspace(0, trace.horizon_us, bins + 1)
    # Time online before t: what has begun by then, less what has ended.
    online_us = _time_since(sessions.start_us, edges) - _time_since(sessions.end_us, edges)
    return np.asarray(np.clip(np.diff(online_us) / np.diff(edges) / trace.clients, 0, 1))


def online_raster(trace: Trace, rows: int, bins: int) -> Floats:
    """Return [rows, bins] the share of time online of groups of clients, those most online first.

    There are at most as many rows as clients.
    """
    sessions, n = trace.spans("online"), trace.clients
    order = np.argsort(-_time_us(sessions, n), kind="stable")
    rows = min(rows, n)
    row_of = np.empty(n, dtype=np.int64)
    row_of[order] = np.arange(n) * rows // n
    row, edges = row_of[sessions.client], np.linspace(0, trace.horizon_us, bins + 1)
    by_row = np.argsort(row, kind="stable")
    cuts = np.searchsorted(row[by_row], np.arange(rows + 1))
    raster = np.empty((rows, bins))
    for r in range(rows):
        part = by_row[cuts[r] : cuts[r + 1]]
        begun, ended = sessions.start_us[part], sessions.end_us[part]
        raster[r] = np.diff(_time_since(begun, edges) - _time_since(ended, edges))
    return np.asarray(np.clip(raster / np.diff(edges) / np.bincount(row_of, minlength=rows)[:, None], 0, 1))


def _time_since(instants: Ints, edges: Floats) -> Floats:
    """Return for each edge the sum over earlier instants of the time since then."""
    ordered = np.sort(instants)
    before = np.searchsorted(ordered, edges)
    sums = np.concatenate([[0.0], np.cumsum(ordered, dtype=np.float64)])
    return np.asarray(before * edges - sums[before])


def _time_us(spans: Spans, n: int) -> Floats:
    length = (spans.end_us - spans.start_us).astype(np.float64)
    return np.bincount(spans.client, length, minlength=n).astype(np.float64)


def _means(spans: Spans, n: int) -> Floats:
    """Return the mean over time of each client that has intervals."""
    length = (spans.end_us - spans.start_us).astype(np.float64)
    total = np.bincount(spans.client, length, minlength=n)
    mean = np.bincount(spans.client, spans.value * length, minlength=n)[total > 0] / total[total > 0]
    return np.asarray(mean)


def _quartiles(values: Floats | Ints) -> Floats:
    return np.asarray(np.quantile(values, QUARTILES)) if len(values) else np.full(3, np.nan)

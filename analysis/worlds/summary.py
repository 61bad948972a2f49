"""A trace in numbers: when and for how long clients are online, how fast they are, how often they fail.

Intervals of clients with loop periods are repeated up to the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedsim.common import arguments
from fedsim.common.arrays import Floats, Ints
from fedsim.common.units import DAY_US, HOUR_US
from fedsim.worlds.client_statistics import clock_us, mean_value, time_us
from fedsim.worlds.interval_arithmetic import repeated
from fedsim.worlds.trace import KINDS, MODELLED, Spans, Trace
from fedsim.worlds.transforms import laps_us

QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class WorldSummary:
    """A trace in numbers. Quartiles are (lower, median, upper); NaN without values."""

    intervals: Mapping[str, int]
    """Number of rows of the table by kind."""
    online_mean: float
    """Share of the client-time that is online."""
    online_quartiles: Floats
    """Quartiles over clients of the share of time online."""
    never_online: int
    """Number of clients that are never online; those of which nothing is known do not count."""
    unknown_share: float
    """Share of the client-time that is unknown."""
    unknown_clients: int
    """Number of clients that are unknown all the time."""
    session_quartiles_us: Floats
    """Quartiles over sessions; a session cut by the horizon counts with the part before it."""
    gap_quartiles_us: Floats
    """Quartiles over the gaps between two sessions of a client that contain no unknown time."""
    speed_quartiles: Mapping[str, Floats]
    """By modelled kind: quartiles over clients of the mean over time, in the unit of the kind."""
    faults: int
    fault_share: float
    """Share of the client-time with a fault."""
    periods: Mapping[str, tuple[int, Floats]]
    """By kind: number of clients with a loop period, and its quartiles over these clients in microseconds."""


@arguments.checked
def summarize_world(trace: Trace) -> WorldSummary:
    """Return the numbers of a trace."""
    n, horizon_us = trace.clients, trace.horizon_us
    faults, unknown = written_out(trace, "fault"), written_out(trace, "unknown")
    share = time_us(sessions(trace), n) / horizon_us
    nothing = time_us(unknown, n) / horizon_us
    return WorldSummary(
        intervals={kind: len(trace.spans(kind).client) for kind in KINDS},
        online_mean=float(share.mean()),
        online_quartiles=_quartiles(share),
        never_online=int(((share == 0) & (nothing < 1)).sum()),
        unknown_share=float(nothing.mean()),
        unknown_clients=int((nothing >= 1).sum()),
        session_quartiles_us=_quartiles(session_lengths_us(trace)),
        gap_quartiles_us=_quartiles(gap_lengths_us(trace)),
        speed_quartiles={k: _quartiles(v) for k in MODELLED if len(v := mean_speeds(trace, k))},
        faults=len(faults.client),
        fault_share=float(time_us(faults, n).mean() / horizon_us),
        periods={kind: _periods(trace, kind) for kind in trace.periods},
    )


def written_out(trace: Trace, kind: str) -> Spans:
    """Return the intervals of a kind over [0, horizon), repeated for clients with loop periods."""
    return repeated(trace.spans(kind), laps_us(trace, kind), trace.horizon_us)


def sessions(trace: Trace) -> Spans:
    """Return the sessions of all clients up to the horizon; touching intervals form one session."""
    return written_out(trace, "online").joined()


def session_lengths_us(trace: Trace) -> Ints:
    """Return the length of each session in microseconds."""
    spans = sessions(trace)
    return spans.end_us - spans.start_us


def gap_lengths_us(trace: Trace) -> Ints:
    """Return the length in microseconds of each gap between two sessions of a client that contains no unknown time."""
    spans, unknown = sessions(trace), written_out(trace, "unknown")
    follows = np.flatnonzero(spans.client[1:] == spans.client[:-1])
    client, start, end = spans.client[follows], spans.end_us[follows], spans.start_us[follows + 1]
    axis = trace.horizon_us + 1
    at = np.searchsorted(unknown.client * axis + unknown.end_us, client * axis + start, side="right")
    begins = np.append(unknown.client * axis + unknown.start_us, np.iinfo(np.int64).max)
    return (end - start)[begins[at] >= client * axis + end]


def mean_speeds(trace: Trace, kind: str) -> Floats:
    """Return the mean over time, in the unit of the kind, for each client with intervals of a modelled kind."""
    means = mean_value(trace.spans(kind), trace.clients)
    return means[~np.isnan(means)]


@arguments.checked
def online_share(trace: Trace, bins: int) -> Floats:
    """Return [bins] the mean share of clients online in each of `bins` equal parts of the horizon."""
    spans = written_out(trace, "online")
    edges = np.linspace(0, trace.horizon_us, bins + 1)
    # Time online before t: time since earlier starts, less time since earlier ends.
    online_us = _time_since(spans.start_us, edges) - _time_since(spans.end_us, edges)
    return np.asarray(np.clip(np.diff(online_us) / np.diff(edges) / trace.clients, 0, 1))


def online_raster(trace: Trace, rows: int, bins: int) -> Floats:
    """Return [rows, bins] the share of time online of groups of clients, most online first.

    The result has at most as many rows as the trace has clients.
    """
    spans, n = written_out(trace, "online"), trace.clients
    order = np.argsort(-time_us(spans, n), kind="stable")
    rows = min(rows, n)
    row_of = np.empty(n, dtype=np.int64)
    row_of[order] = np.arange(n) * rows // n
    row, edges = row_of[spans.client], np.linspace(0, trace.horizon_us, bins + 1)
    by_row = np.argsort(row, kind="stable")
    cuts = np.searchsorted(row[by_row], np.arange(rows + 1))
    raster = np.empty((rows, bins))
    for r in range(rows):
        part = by_row[cuts[r] : cuts[r + 1]]
        starts, ends = spans.start_us[part], spans.end_us[part]
        raster[r] = np.diff(_time_since(starts, edges) - _time_since(ends, edges))
    return np.asarray(np.clip(raster / np.diff(edges) / np.bincount(row_of, minlength=rows)[:, None], 0, 1))


def hours_online(trace: Trace) -> Floats:
    """Return [clients, 24] the share of each hour of the day that a client is online; NaN for hours outside the world.

    The clock is that of the trace's origin; without one, virtual time starts at midnight.
    """
    spans, offset = written_out(trace, "online"), clock_us(trace.origin)
    table = np.full((trace.clients, 24), np.nan)
    for hour in range(24):
        total = float(np.diff(_in_hour(np.array([offset, offset + trace.horizon_us]), hour))[0])
        if total > 0:
            length = _in_hour(spans.end_us + offset, hour) - _in_hour(spans.start_us + offset, hour)
            table[:, hour] = np.bincount(spans.client, length, minlength=trace.clients) / total
    return table


@arguments.checked
def class_hours(trace: Trace, label_counts: Ints | Floats) -> Floats:
    """Return [classes, 24] the share of a class's samples whose client is online, by hour of the day.

    `label_counts` [K, classes] are the samples of each class that the first K clients of the world hold. NaN for a
    class without samples, and for hours outside the world.
    """
    counts = np.asarray(label_counts, dtype=np.float64)
    total = counts.sum(axis=0)
    shares = np.divide(counts, total, out=np.full(counts.shape, np.nan), where=total > 0)
    return np.asarray(shares.T @ hours_online(trace)[: len(counts)])


def _in_hour(t_us: Ints, hour: int) -> Floats:
    """Return how many microseconds of [0, t) lie in an hour of the day."""
    days, rest = np.divmod(t_us, DAY_US)
    return np.asarray(days * HOUR_US + np.clip(rest - hour * HOUR_US, 0, HOUR_US), dtype=np.float64)


def _periods(trace: Trace, kind: str) -> tuple[int, Floats]:
    own = trace.period_us(kind)
    return int((own > 0).sum()), _quartiles(own[own > 0])


def _time_since(instants: Ints, edges: Floats) -> Floats:
    """Return for each edge the sum of the times since all earlier instants."""
    ordered = np.sort(instants)
    before = np.searchsorted(ordered, edges)
    sums = np.concatenate([[0.0], np.cumsum(ordered, dtype=np.float64)])
    return np.asarray(before * edges - sums[before])


def _quartiles(values: Floats | Ints) -> Floats:
    return np.asarray(np.quantile(values, QUARTILES)) if len(values) else np.full(3, np.nan)

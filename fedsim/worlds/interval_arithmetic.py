"""Arithmetic on the intervals of many clients: exact, in whole microseconds, for all clients at once.

All functions take and return intervals of one kind in order of (client, start); a `lap` is how long a client's
intervals take to begin again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedsim.common.errors import TraceError
from fedsim.worlds.trace import KINDS, Spans

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

MOST_ROWS = 50_000_000
"""Laps that would take more intervals than that are not written out."""


def of_rows(spans: Spans, rows: Mask | Ints) -> Spans:
    """Return some of the intervals; the order of `rows` is kept."""
    return Spans(spans.client[rows], spans.start_us[rows], spans.end_us[rows], spans.value[rows])


def taken(spans: Spans, clients: Ints) -> Spans:
    """Return the intervals of `clients[i]` as those of client i; a client may be taken several times."""
    first = np.searchsorted(spans.client, clients)
    counts = np.searchsorted(spans.client, clients, side="right") - first
    begins = np.cumsum(counts) - counts
    rows = np.arange(counts.sum()) + np.repeat(first - begins, counts)
    part = of_rows(spans, rows)
    return Spans(np.repeat(np.arange(len(clients)), counts), part.start_us, part.end_us, part.value)


def cut(spans: Spans, start_us: int, end_us: int) -> Spans:
    """Return what lies in [start_us, end_us), with times counted from `start_us`."""
    inside = of_rows(spans, (spans.start_us < end_us) & (spans.end_us > start_us))
    start, end = np.maximum(inside.start_us, start_us), np.minimum(inside.end_us, end_us)
    return Spans(inside.client, start - start_us, end - start_us, inside.value)


def repeated(spans: Spans, lap_us: Ints, end_us: int) -> Spans:
    """Write the laps of every client out over [0, end_us); `lap_us` [clients] is 0 for a single lap.

    Raises TraceError where that would be more than MOST_ROWS intervals.
    """
    lap = np.where(lap_us > 0, lap_us, end_us)[spans.client]
    laps = -(-end_us // lap)
    if laps.sum() > MOST_ROWS:
        raise TraceError(
            f"expected at most {MOST_ROWS:,} intervals after writing loop periods out, found {laps.sum():,}; "
            "take fewer clients or a shorter part"
        )
    rows = np.repeat(np.arange(len(laps)), laps)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(laps) - laps, laps)
    start = spans.start_us[rows] + number * lap[rows]
    end = np.minimum(spans.end_us[rows] + number * lap[rows], end_us)
    all_of_them = Spans(spans.client[rows], start, end, spans.value[rows])
    return fused(of_rows(all_of_them, start < end_us))


def rotated(spans: Spans, lap_us: Ints, by_us: Ints) -> Spans:
    """Let everything happen `by_us` [clients] later (earlier if negative) within laps of `lap_us` [clients]."""
    lap = lap_us[spans.client]
    later = by_us[spans.client] % lap
    start, end = spans.start_us + later, spans.end_us + later
    beyond = start >= lap
    start, end = start - lap * beyond, end - lap * beyond
    over = end > lap
    moved = Spans(spans.client, start, np.minimum(end, lap), spans.value)
    rest = Spans(
        spans.client[over], np.zeros(int(over.sum()), np.int64), (end - lap)[over], spans.value[over]
    )
    return fused(merged([moved, rest]))


def stretched(spans: Spans, factor: Fraction) -> Spans:
    """Multiply all times, rounded to whole microseconds; what becomes empty is left out."""
    start, end = times(spans.start_us, factor), times(spans.end_us, factor)
    return of_rows(Spans(spans.client, start, end, spans.value), start < end)


def times(time_us: Ints, factor: Fraction) -> Ints:
    """Return times multiplied by a factor and rounded, half up; exact and without overflow on the way."""
    size = factor.denominator
    laps, over = divmod(factor.numerator, size)
    whole, rest = np.divmod(time_us, size)
    return np.asarray(whole * factor.numerator + rest * laps + (2 * rest * over + size) // (2 * size))


def merged(parts: Iterable[Spans]) -> Spans:
    """Return the intervals of several lists as one, in order."""
    found = list(parts)
    client, start = _joined([p.client for p in found]), _joined([p.start_us for p in found])
    end, value = _joined([p.end_us for p in found]), np.concatenate([p.value for p in found])
    return of_rows(Spans(client, start, end, value), np.lexsort((start, client)))


def fused(spans: Spans) -> Spans:
    """Put the intervals in order and make one of those that touch and have the same value."""
    ordered = of_rows(spans, np.lexsort((spans.start_us, spans.client)))
    same = (ordered.client[1:] == ordered.client[:-1]) & (ordered.value[1:] == ordered.value[:-1])
    touches = same & (ordered.start_us[1:] == ordered.end_us[:-1])
    edge = np.ones(min(len(ordered.client), 1), dtype=bool)
    opens, closes = np.concatenate([edge, ~touches]), np.concatenate([~touches, edge])
    return Spans(ordered.client[opens], ordered.start_us[opens], ordered.end_us[closes], ordered.value[opens])


def table_of(kinds: Mapping[str, Spans]) -> pa.Table:
    """Return the intervals of several kinds as the table that a Trace is made of."""
    codes = np.concatenate([np.full(len(s.client), KINDS.index(k), np.int8) for k, s in kinds.items()])
    columns = {
        "client": _joined([s.client for s in kinds.values()]),
        "start_us": _joined([s.start_us for s in kinds.values()]),
        "end_us": _joined([s.end_us for s in kinds.values()]),
        "kind": pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(KINDS)),
        "value": np.concatenate([s.value for s in kinds.values()]),
    }
    return pa.table(columns)


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)

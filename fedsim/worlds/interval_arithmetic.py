"""Arithmetic on the intervals of many clients: exact, in whole microseconds, for all clients at once.

All functions take and return intervals of one kind in order of (client, start). A client's `lap` is the time after
which its intervals begin again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np
import pyarrow as pa

from fedsim.common.arrays import Ints, Mask
from fedsim.common.errors import TraceError
from fedsim.worlds.trace import KINDS, Spans

MOST_ROWS = 50_000_000
"""Most intervals that laps are written out to."""


def of_rows(spans: Spans, rows: Mask | Ints) -> Spans:
    """Return the intervals in `rows`, a mask or row numbers, in that order."""
    return Spans(spans.client[rows], spans.start_us[rows], spans.end_us[rows], spans.value[rows])


def taken(spans: Spans, clients: Ints) -> Spans:
    """Return the intervals of `clients[i]` as those of client i; a client may occur several times."""
    first = np.searchsorted(spans.client, clients)
    counts = np.searchsorted(spans.client, clients, side="right") - first
    begins = np.cumsum(counts) - counts
    rows = np.arange(counts.sum()) + np.repeat(first - begins, counts)
    part = of_rows(spans, rows)
    return Spans(np.repeat(np.arange(len(clients)), counts), part.start_us, part.end_us, part.value)


def cut(spans: Spans, start_us: int, end_us: int) -> Spans:
    """Return the parts of intervals inside [start_us, end_us), with times counted from `start_us`."""
    inside = of_rows(spans, (spans.start_us < end_us) & (spans.end_us > start_us))
    start, end = np.maximum(inside.start_us, start_us), np.minimum(inside.end_us, end_us)
    return Spans(inside.client, start - start_us, end - start_us, inside.value)


def repeated(spans: Spans, lap_us: Ints, end_us: int) -> Spans:
    """Write the laps of every client out over [0, end_us); where `lap_us` [clients] is 0 there is a single lap.

    Raises TraceError if that takes more than MOST_ROWS intervals.
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
    written_out = Spans(spans.client[rows], start, end, spans.value[rows])
    return fused(of_rows(written_out, start < end_us))


def rotated(spans: Spans, lap_us: Ints, by_us: Ints) -> Spans:
    """Shift intervals by `by_us` [clients] (earlier if negative), around laps of `lap_us` [clients]."""
    lap = lap_us[spans.client]
    later = by_us[spans.client] % lap
    start, end = spans.start_us + later, spans.end_us + later
    beyond = start >= lap
    start, end = start - lap * beyond, end - lap * beyond
    over = end > lap
    moved = Spans(spans.client, start, np.minimum(end, lap), spans.value)
    wrapped = Spans(
        spans.client[over], np.zeros(int(over.sum()), np.int64), (end - lap)[over], spans.value[over]
    )
    return fused(merged([moved, wrapped]))


def stretched(spans: Spans, factor: Fraction) -> Spans:
    """Multiply all times and round them to whole microseconds; intervals that become empty are left out."""
    start, end = times(spans.start_us, factor), times(spans.end_us, factor)
    return of_rows(Spans(spans.client, start, end, spans.value), start < end)


def times(time_us: Ints, factor: Fraction) -> Ints:
    """Return times multiplied by a factor, rounded half up: exact, and without overflow on the way."""
    denominator = factor.denominator
    integral, fractional = divmod(factor.numerator, denominator)
    whole, rest = np.divmod(time_us, denominator)
    rounded = (2 * rest * fractional + denominator) // (2 * denominator)
    return np.asarray(whole * factor.numerator + rest * integral + rounded)


def merged(parts: Iterable[Spans]) -> Spans:
    """Return the intervals of one or several parts as one, in order."""
    columns = ((p.client, p.start_us, p.end_us, p.value) for p in parts)
    spans = Spans(*map(np.concatenate, zip(*columns, strict=True)))
    return of_rows(spans, np.lexsort((spans.start_us, spans.client)))


def fused(spans: Spans) -> Spans:
    """Put the intervals in order, and join those that touch and have the same value."""
    return merged([spans]).joined(equal=True)


def table_of(kinds: Mapping[str, Spans]) -> pa.Table:
    """Return the intervals of one or several kinds as the table that a Trace is made of."""
    parts = kinds.values()
    codes = np.concatenate([np.full(len(s.client), KINDS.index(k), np.int8) for k, s in kinds.items()])
    columns = {
        "client": np.concatenate([s.client for s in parts]),
        "start_us": np.concatenate([s.start_us for s in parts]),
        "end_us": np.concatenate([s.end_us for s in parts]),
        "kind": pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(KINDS)),
        "value": np.concatenate([s.value for s in parts]),
    }
    return pa.table(columns)

"""A plain table of intervals as Parquet, or a trace of this project, which stays as it is.

Without the metadata of a trace the columns are those of the importer `csv`: client, start, end, and optionally kind
and value.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from fedsim.common.errors import TraceError
from fedsim.common.files import PARQUET_ERRORS, parquet_table
from fedsim.scenarios.importers.reading.files import Problems, shown
from fedsim.scenarios.importers.reading.interval_tables import (
    UNITS_US,
    Plain,
    PlainTable,
    Unit,
    dated,
    named,
    plain_trace,
    row_problem,
    time_columns,
)
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import AfterEnd, read_trace


def parquet(
    *,
    unit: Unit = "s",
    kind: str = "online",
    horizon: str | float | None = None,
    after_end: AfterEnd = "repeat",
    outside: Literal["offline", "unknown"] = "offline",
    order: Literal["first", "name"] = "first",
    merge: bool = False,
    facts: str = "",
) -> Importer:
    """Intervals from a Parquet file: a trace, which stays as it is, or a table with the columns of the importer `csv`.

    The options do not apply to a trace.

    Args:
        unit: unit of the columns `start` and `end`; a column such as `start_ms` has that of its name.
        kind: kind of all rows of a table without that column.
        horizon: length of the world; None: up to the last end.
        after_end: what follows the horizon. "repeat": the world begins again. "stop": everybody is offline. "error":
            questions about later times are refused.
        outside: whether a client is "offline" or "unknown" before its first and after its last interval.
        order: how clients are numbered: by their "first" rows, or by "name" as a Task of your own data does.
        merge: join intervals of one client and kind that overlap or meet, but not those of speeds; otherwise intervals
            that overlap are refused.
        facts: columns, separated by commas, with a fact about each client that is the same in all its rows, such as
            region; reports group the clients by them.
    """
    return Importer(
        recognises=lambda source: source.data[:4] == b"PAR1",
        read=partial(
            _read, options=Plain(unit, kind, horizon, after_end, outside, order, merge, named(facts))
        ),
        licence="not told",
        units=f"{unit} to microseconds unless a column's name has another unit; dates from midnight; values unchanged",
    )


def _read(sources: Sequence[Source], options: Plain) -> Imported:
    if len(sources) != 1:
        raise TraceError(f"{sources[0].name} and others: expected one Parquet file, found {len(sources)}")
    table = _table(sources[0])
    if b"fedsim.schema_version" in (table.schema.metadata or {}):
        return _trace(sources[0])
    return plain_trace(_plain_table(sources[0].name, table, options), options)


def _table(source: Source) -> pa.Table:
    try:
        return parquet_table(pa.BufferReader(source.data))
    except PARQUET_ERRORS as error:
        raise TraceError(
            f"{source.name}: not a readable Parquet file (truncated or foreign): {error}"
        ) from None


def _trace(source: Source) -> Imported:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.parquet"
        path.write_bytes(source.data)
        try:
            trace = read_trace(path)
        except TraceError as error:
            raise TraceError(str(error).replace(str(path), source.name)) from None
        except PARQUET_ERRORS as error:
            raise TraceError(f"{source.name}: not a readable trace: {error}") from None
    return Imported(trace, {"source": trace.source})


def _plain_table(name: str, table: pa.Table, options: Plain) -> PlainTable:
    header = table.column_names
    times = time_columns(header, name, options.unit, options.facts)
    clients = [shown(c) if not isinstance(c, int | str) else str(c) for c in _list(table, "client", name)]
    dates = any(_holds_dates(table, column) for column, _ in times.values())
    times = dated(times, name, options.unit) if dates else times
    cells = [_dates(table, c, name) if dates else _floats(table, c, name) for c, _ in times.values()]
    start, end = (
        of_time.astype(np.int64).astype(np.float64) if unit == "date" else of_time * UNITS_US[unit]
        for of_time, (_, unit) in zip(cells, times.values(), strict=True)
    )
    n = len(start)
    kinds = [str(k) for k in _list(table, "kind", name)] if "kind" in header else [options.kind] * n
    values = _floats(table, "value", name) if "value" in header else np.full(n, np.nan)
    problems = Problems()
    for i in range(n):
        interval_us, written = (start[i].item(), end[i].item()), (cells[0][i], cells[1][i])
        if problem := row_problem(interval_us, kinds[i], values[i].item(), written, times):
            problems.add(f"{name}, row {i} (client {clients[i][:80]!r}): {problem}")
    problems.check()
    start_us, end_us = (np.round(t).astype(np.int64) for t in (start, end))
    facts = {
        fact: [None if value != value else value for value in table.column(fact).to_pylist()]
        for fact in options.facts
    }
    place = f"{name}, row {{}}".format
    return PlainTable(name, clients, start_us, end_us, kinds, values, place, dates, facts=facts)


def _list(table: pa.Table, column: str, name: str) -> list[Any]:
    values: list[Any] = table.column(column).to_pylist()
    for row, value in enumerate(values):
        if value is None or value != value:  # NaN is what some writers make of null
            raise TraceError(
                f"{name}, row {row}: expected a {column}, found {'null' if value is None else value}"
            )
    return values


def _holds_dates(table: pa.Table, column: str) -> bool:
    kind = table.schema.field(column).type
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _dates(table: pa.Table, column: str, name: str) -> Any:
    """Return a column of dates in microseconds. Raises TraceError for numbers, and for a zone other than UTC."""
    kind = table.schema.field(column).type
    if not _holds_dates(table, column):
        raise TraceError(f"{name}: expected dates in column {column!r}, as in the other, found {kind}")
    zone = getattr(kind, "tz", None)
    if zone not in (None, "UTC"):
        raise TraceError(
            f"{name}: expected dates in UTC or without a time zone in column {column!r}, found those of {zone}: with "
            f"pandas, {column}.dt.tz_convert('UTC') or {column}.dt.tz_localize(None)"
        )
    return table.column(column).cast(pa.timestamp("us", zone), safe=False).to_numpy()


def _floats(table: pa.Table, column: str, name: str) -> Any:
    try:
        return np.asarray(table.column(column).cast(pa.float64()).to_numpy(), np.float64)
    except PARQUET_ERRORS as error:
        raise TraceError(f"{name}: expected numbers in column {column!r}: {error}") from None

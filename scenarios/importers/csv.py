"""A plain table of intervals as text: columns client, start, end, and optionally kind and value.

Times count from the trace's 0; `start_us`, `start_ms`, `start_s`, `start_min` and `start_h` give their unit. `start`
and `end` may be dates, `2024-03-01 06:30:00`. Kinds and values are those of a Trace: seconds per sample for `compute`,
bytes per second for `downlink` and `uplink`.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

import numpy as np

from fedsim.common.errors import ConfigError, TraceError
from fedsim.scenarios.importers.reading.files import Problems, columns, missing, number, rows, shown
from fedsim.scenarios.importers.reading.interval_tables import (
    EPOCH,
    UNITS_US,
    Plain,
    PlainTable,
    TimeColumns,
    Unit,
    dated,
    named,
    plain_trace,
    row_problem,
    time_columns,
)
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import AfterEnd

_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}")
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d{1,2})?")
_SEPARATORS = (";", "\t", "|", ",", " ")


def csv(
    *,
    unit: Unit = "s",
    kind: str = "online",
    horizon: str | float | None = None,
    after_end: AfterEnd = "repeat",
    outside: Literal["offline", "unknown"] = "offline",
    order: Literal["first", "name"] = "first",
    merge: bool = False,
    facts: str = "",
    separator: str = ",",
) -> Importer:
    """Intervals from tables with the columns client, start, end, kind and value; clients of one name are one client.

    Times count from 0: subtract the midnight before the first from Unix times. Dates such as `2024-03-01 06:30:00`, all
    without a zone or with the same offset, count from the midnight before the first; write them in UTC, as the clocks
    of many zones change twice a year. Rows of the kind `offline`, of any length, are for clients that are never
    online; between other intervals a client is offline anyway. Availability is unknown for clients that have speeds
    alone.

    Args:
        unit: unit of the columns `start` and `end`; a column such as `start_ms` has that of its name.
        kind: kind of all rows of a table without that column, and of rows whose cell there is empty.
        horizon: length of the world; None: up to the last end.
        after_end: what follows the horizon. "repeat": the world begins again. "stop": everybody is offline. "error":
            questions about later times are refused.
        outside: whether a client is "offline" or "unknown" before its first and after its last interval.
        order: how clients are numbered: by their "first" rows, or by "name" as a Task of your own data does.
        merge: join intervals of one client and kind that overlap or meet, but not those of speeds; otherwise intervals
            that overlap are refused.
        facts: columns, separated by commas, with a fact about each client that is the same in all its rows, such as
            region; reports group the clients by them.
        separator: the character that separates cells.
    """
    options = Plain(unit, kind, horizon, after_end, outside, order, merge, named(facts))
    if len(separator) != 1 or separator in '"\r\n':
        raise ConfigError(f"importer option 'separator': expected one character, found {separator!r}")
    return Importer(
        recognises=_recognises,
        read=partial(_read, options=options, separator=separator),
        licence="not told",
        units=f"{unit} to microseconds unless a column's name has another unit; dates from midnight; values unchanged",
    )


def _read(sources: Sequence[Source], options: Plain, separator: str) -> Imported:
    rows_read, problems = _Rows(), Problems()
    for source in sources:
        with problems.caught():
            rows_read.add(source, options, separator, problems)
    problems.check()
    return plain_trace(rows_read.table(sources[0].name), options)


def _recognises(source: Source) -> bool:
    head = source.data[:512].decode("utf-8-sig", errors="replace").split("\n", 1)[0]
    names = [cell.strip().strip('"') for cell in head.split(",")]
    return "client" in names and any(n.split("_")[0] == "start" for n in names)


def _check_separator(header: Sequence[str], source: Source, separator: str) -> None:
    """Raise TraceError if a header is a single cell that another separator divides."""
    other = next((sign for sign in _SEPARATORS if len(header) == 1 and sign in header[0]), None)
    if other is not None:
        option = shlex.quote(f'separator="{other}"'.replace("\t", r"\t"))
        raise TraceError(
            f"{source.name}: expected columns separated by {separator!r}, found {shown(header[0])}: name the "
            f"separator, fedsim trace import csv {shlex.quote(str(source.path))} --option {option} -o OUT.parquet"
        )


def _typed(cells: Sequence[str | None]) -> list[Any]:
    """Return cells as whole numbers, else as numbers, else as they are: `07` is a text, since it is no other number."""
    for kind, pattern in ((int, _WHOLE), (float, _NUMBER)):
        if all(cell is None or pattern.fullmatch(cell) for cell in cells):
            return [None if cell is None else kind(cell) for cell in cells]
    return list(cells)


class _Rows:
    """Growing columns of a table; times in microseconds."""

    def __init__(self) -> None:
        self.client: list[str] = []
        self.start: list[float] = []
        self.end: list[float] = []
        self.kind: list[str] = []
        self.value: list[float] = []
        self.place: list[str] = []
        self.facts: dict[str, list[str | None]] = {}
        self.dates: bool | None = None
        self._zones: set[timedelta | None] = set()

    def add(self, source: Source, options: Plain, separator: str, problems: Problems) -> None:
        """Read one file; rows that are wrong are noted with their lines."""
        table = rows(source, separator)
        header = table[0].cells if table else []
        _check_separator(header, source, separator)
        for each in table[1:]:
            if any(each.cells[len(header) :]):
                problems.add(
                    f"{source.name}, line {each.line}: expected {len(header)} cells, found {len(each.cells)}: put a "
                    f"cell that holds {separator!r} in quotes, and write decimals with a point"
                )
        times = time_columns(header, source.name, options.unit, options.facts)
        wanted = ["client", times["start"][0], times["end"][0]]
        optional = [*(name for name in ("kind", "value") if name in header), *options.facts]
        lines, cells = columns(source, [*wanted, *optional], separator)
        dates = any(_DATE.search(time) for time in (*cells[1][:1], *cells[2][:1]))
        if dates:
            times = dated(times, source.name, options.unit)
        if lines and self.dates not in (None, dates):
            raise TraceError(
                f"{source.name}: expected {'numbers' if dates else 'dates'}, as in the files before it"
            )
        self.dates = dates if lines else self.dates
        for line, row in zip(lines, zip(*cells, strict=True), strict=True):
            cell = dict(zip(["client", "start", "end", *optional], row, strict=True))
            with problems.caught():
                self._row(cell, f"{source.name}, line {line}", times, options)

    def table(self, name: str) -> PlainTable:
        start, end = (np.array([round(t) for t in times], np.int64) for times in (self.start, self.end))
        values, place = np.array(self.value), self.place.__getitem__
        facts = {name: _typed(cells) for name, cells in self.facts.items()}
        return PlainTable(
            name, self.client, start, end, self.kind, values, place, bool(self.dates), facts=facts
        )

    def _row(self, cell: dict[str, str], place: str, times: TimeColumns, options: Plain) -> None:
        if not cell["client"]:
            raise TraceError(f"{place}: expected a client, found none")
        start, end = (
            self._date_us(cell[time], f"{place}, {name!r}")
            if unit == "date"
            else number(cell[time], f"{place}, {name!r}") * UNITS_US[unit]
            for time, (name, unit) in times.items()
        )
        kind, text = cell.get("kind") or options.kind, cell.get("value", "")
        value = math.nan if missing(text) else number(text, f"{place}, 'value'")
        if problem := row_problem((start, end), kind, value, (cell["start"], cell["end"]), times):
            raise TraceError(f"{place}, client {cell['client'][:80]!r}: {problem}")
        self.client.append(cell["client"])
        self.start.append(start)
        self.end.append(end)
        self.kind.append(kind)
        self.value.append(value)
        self.place.append(place)
        for name in options.facts:
            self.facts.setdefault(name, []).append(None if missing(cell[name]) else cell[name])

    def _date_us(self, text: str, place: str) -> float:
        """Return a date as microseconds of local time from 1970. Raises TraceError, also for a second time zone."""
        try:
            date = datetime.fromisoformat(text)
        except ValueError:
            raise TraceError(
                f"{place}: expected a date such as 2024-03-01 06:30:00, found {shown(text)}"
            ) from None
        if self._zones and date.utcoffset() not in self._zones:
            raise TraceError(
                f"{place}: expected the time zone of the dates before it, found {shown(text)}: write all dates in UTC"
            )
        self._zones.add(date.utcoffset())
        return (date.replace(tzinfo=None) - EPOCH) / timedelta(microseconds=1)

"""A plain table of intervals as text: columns client, start, end, and perhaps kind and value.

Times are from the trace's own 0; `start_us`, `start_ms`, `start_s`, `start_min` and `start_h` say their unit. Kinds
and values are those of a Trace: seconds per sample for `compute`, bytes per second for `downlink` and `uplink`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedsim.common.errors import ConfigError, TraceError
from fedsim.scenarios.importers.reading.files import Problems, columns, missing, number, rows
from fedsim.scenarios.importers.reading.interval_tables import (
    Plain,
    Unit,
    plain_trace,
    row_problem,
    time_columns,
)
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import AfterEnd


def csv(
    *,
    unit: Unit = "s",
    kind: str = "online",
    horizon: str | float | None = None,
    after_end: AfterEnd = "repeat",
    outside: Literal["offline", "unknown"] = "offline",
    separator: str = ",",
) -> Importer:
    """Intervals from a table with the columns client, start, end, kind and value.

    `unit` is for columns `start` and `end` without one in their names, `kind` for tables without that column.
    `horizon` is the length of the world, by default the last end; `after_end` is what it does then. `outside` says
    what lies before a client's first and after its last interval: `offline`, taking the table at its word, or
    `unknown`. Of clients with speeds alone it is not known whether they are there. `separator` stands between cells.
    """
    options = Plain(unit, kind, horizon, after_end, outside)
    if len(separator) != 1 or separator in '"\r\n':
        raise ConfigError(f"importer option 'separator': expected one character, found {separator!r}")

    def read(sources: Sequence[Source]) -> Imported:
        table = _Table()
        problems = Problems()
        for source in sources:
            with problems.caught():
                table.add(source, options, separator, problems)
        problems.check()
        start, end = (np.array([round(t) for t in times], np.int64) for times in (table.start, table.end))
        values, place = np.array(table.value), table.place.__getitem__
        return plain_trace(sources[0].name, table.client, start, end, table.kind, values, options, place)

    return Importer(
        recognises=_recognises,
        read=read,
        licence="not told",
        units=f"{unit} to microseconds unless a column's name has another unit; values as they are",
    )


def _recognises(source: Source) -> bool:
    head = source.data[:512].decode("utf-8-sig", errors="replace").split("\n", 1)[0]
    names = [cell.strip().strip('"') for cell in head.split(",")]
    return "client" in names and any(n.split("_")[0] == "start" for n in names)


class _Table:
    """Columns that grow; times in microseconds."""

    def __init__(self) -> None:
        self.client: list[str] = []
        self.start: list[float] = []
        self.end: list[float] = []
        self.kind: list[str] = []
        self.value: list[float] = []
        self.place: list[str] = []

    def add(self, source: Source, options: Plain, separator: str, problems: Problems) -> None:
        """Read one file; rows that are wrong are noted with their lines."""
        header = next((row.cells for row in rows(source, separator)), [])
        times = time_columns(header, source.name, options.unit)
        wanted = ["client", times["start"][0], times["end"][0]]
        optional: list[str] = [name for name in ("kind", "value") if name in header]
        lines, cells = columns(source, [*wanted, *optional], separator)
        for line, row in zip(lines, zip(*cells, strict=True), strict=True):
            given = dict(zip(["client", "start", "end", *optional], row, strict=True))
            with problems.caught():
                self._row(given, f"{source.name}, line {line}", times, options.kind)

    def _row(
        self, given: dict[str, str], place: str, times: dict[str, tuple[str, int]], default: str
    ) -> None:
        if not given["client"]:
            raise TraceError(f"{place}: expected a client, found none")
        start, end = (number(given[t], f"{place}, {times[t][0]!r}") * times[t][1] for t in ("start", "end"))
        kind, text = given.get("kind") or default, given.get("value", "")
        value = math.nan if missing(text) else number(text, f"{place}, 'value'")
        wrong = row_problem(start, end, kind, value)
        if wrong:
            raise TraceError(f"{place}, client {given['client'][:80]!r}: {wrong}")
        self.client.append(given["client"])
        self.start.append(start)
        self.end.append(end)
        self.kind.append(kind)
        self.value.append(value)
        self.place.append(place)

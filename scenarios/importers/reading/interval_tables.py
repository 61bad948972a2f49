"""Read tables of intervals from other programs: columns client, start, end, and optionally kind and value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Ints, as_numbers
from fedsim.common.errors import ConfigError, TraceError, closest
from fedsim.common.units import DAY_US, duration_us, show_us
from fedsim.scenarios.importers.reading.files import Problems, Windows, about, shown
from fedsim.worlds.importer import Imported
from fedsim.worlds.trace import KINDS, MODELLED, AfterEnd, Trace, TraceFacts

Unit = Literal["us", "ms", "s", "min", "h"]
UNITS_US: dict[Unit, int] = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
LONGEST_US = 3.2e15
EPOCH = datetime(1970, 1, 1)
_TIMES = ("start", "end")
_SUFFIXES = [f"_{unit}" for unit in UNITS_US]
_OFFLINE = "offline"
"""The kind of rows that say when a client is not online; a Trace has no intervals of it."""
_NO_FACTS = {
    "id",
    "client",
    "kind",
    "value",
    *(f"{time}{unit}" for time in _TIMES for unit in ("", *_SUFFIXES)),
}
"""Columns that are no facts about clients."""


@dataclass(frozen=True, slots=True)
class Plain:
    """Options of plain tables."""

    unit: Unit
    kind: str
    horizon: str | float | None
    after_end: AfterEnd
    outside: Literal["offline", "unknown"]
    order: Literal["first", "name"]
    merge: bool
    facts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for fact in self.facts:
            if fact in _NO_FACTS or self.facts.count(fact) > 1:
                raise ConfigError(
                    "importer option 'facts': expected different columns of the table's own, found "
                    f"{', '.join(self.facts)}"
                )
        if self.kind not in KINDS:
            raise ConfigError(
                f"importer option 'kind': there is no kind {self.kind!r}{closest(self.kind, KINDS)}"
            )
        self.horizon_us()

    def horizon_us(self) -> int | None:
        """Return the horizon option in microseconds, or None. Raises ConfigError."""
        try:
            horizon_us = None if self.horizon is None else duration_us(self.horizon)
        except ValueError as error:
            raise ConfigError(f"importer option 'horizon': {error}") from error
        if horizon_us is not None and not 1 <= horizon_us <= LONGEST_US:
            raise ConfigError(f"importer option 'horizon': expected up to 100 years, found {self.horizon!r}")
        return horizon_us


def named(columns: str) -> tuple[str, ...]:
    """Return names that commas separate."""
    return tuple(name.strip() for name in columns.split(",") if name.strip())


@dataclass(frozen=True, slots=True)
class PlainTable:
    """The rows of a table, each checked by itself: columns of equal length.

    Times count from 0, or where the table has dates, from 1970.
    """

    name: str
    clients: Sequence[str]
    start_us: Ints
    end_us: Ints
    kinds: Sequence[str]
    values: NDArray[np.float64]
    place: Callable[[int], str]
    """Return the place of a row for messages."""
    dates: bool = False
    origin_us: int = 0
    """From 1970, where times count from if the table has dates."""
    facts: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """By column the value of each row about its client; None where there is none."""


TimeColumns = dict[str, tuple[str, Unit | Literal["date"]]]
"""By `start` and `end` the column that holds it, and its unit."""


def time_columns(header: Sequence[str], name: str, unit: Unit, facts: Sequence[str] = ()) -> TimeColumns:
    """Return the columns of a table that hold times, and their units.

    The names `start_s`, `start_ms`, ... give the unit; a bare `start` is in `unit`. Raises TraceError for missing,
    unknown and repeated columns; `facts` are those of facts about clients.
    """
    if not header:
        raise TraceError(f"{name}: expected a line with the names of columns, found an empty file")
    chosen: TimeColumns = {}
    for time in _TIMES:
        names = {time: unit} | {f"{time}_{u}": u for u in UNITS_US}
        present = [(n, u) for n, u in names.items() if n in header]
        if len(present) != 1:
            raise TraceError(
                f"{name}: expected one column of {', '.join(names)}, found {shown(list(header))}"
            )
        chosen[time] = present[0]
    if "client" not in header:
        raise TraceError(f"{name}: expected a column 'client', found {shown(list(header))}")
    known = {"client", "kind", "value", *(column for column, _ in chosen.values())}
    for fact in facts:
        if fact not in header:
            raise TraceError(f"{name}: there is no column {shown(fact)} of facts{closest(fact[:80], header)}")
    for column in header:
        if column not in known and column not in facts:
            raise TraceError(
                f"{name}: unknown column {shown(column)}{closest(column[:80], known)}; --option facts={column} keeps "
                "a column with one value for each client"
            )
    if len(set(header)) < len(header):
        raise TraceError(f"{name}: a column twice")
    return chosen


def dated(times: TimeColumns, name: str, unit: Unit) -> TimeColumns:
    """Return the columns of a table whose times are dates. Raises TraceError, ConfigError if they have a unit."""
    for time, (column, _) in times.items():
        if column != time:
            raise TraceError(f"{name}: expected numbers in column {column!r}, found dates: name it {time!r}")
    if unit != "s":
        raise ConfigError(f"importer option 'unit': no effect, as {name} has dates: leave it out")
    return {time: (column, "date") for time, (column, _) in times.items()}


def plain_trace(table: PlainTable, options: Plain) -> Imported:
    """Return the Trace of a table.

    Dates become times from the midnight before the first. Raises TraceError for intervals that overlap or end after the
    horizon, and for clients that are online but lack a speed that others have.
    """
    if not len(table.start_us):
        raise TraceError(f"{table.name}: expected rows, found none")
    origin = ""
    if table.dates:
        midnight_us = int(table.start_us.min()) // DAY_US * DAY_US
        origin = (EPOCH + timedelta(microseconds=midnight_us)).isoformat()
        table = replace(
            table,
            start_us=table.start_us - midnight_us,
            end_us=table.end_us - midnight_us,
            origin_us=midnight_us,
        )
    found = list(dict.fromkeys(table.clients))
    ids = by_name(found) if options.order == "name" else found
    numbers = {name: i for i, name in enumerate(ids)}
    n, client = len(numbers), np.array([numbers[name] for name in table.clients], np.int64)
    facts = _facts_of_clients(table, client, n)
    if options.merge:
        table, client = _merged(table, client)
    kind = np.array(table.kinds)
    _check_apart(table, client)
    _check_described(table.name, ids, client, kind)
    horizon_us = options.horizon_us() or int(table.end_us.max())
    _check_horizon(table, horizon_us)
    columns = _with_unknown(table, client, _unknown(table, client, n, horizon_us, options.outside))
    world: TraceFacts = {
        "clients": n,
        "horizon_us": horizon_us,
        "after_end": options.after_end,
        "origin": origin,
        "about": about(ids, facts),
    }
    try:
        trace = Trace.of(*columns, **world)
    except TraceError as error:
        raise TraceError(f"{table.name}: {error}") from None
    without_presence = n - len(np.unique(client[_of_presence(kind)]))
    notes: dict[str, Any] = {"rows": len(table.start_us), "clients_of_unknown_presence": without_presence}
    if ids != by_name(ids):
        notes["order"] = (
            "by first row; for data of these clients, --option order=name numbers them as the data are"
        )
    return Imported(trace, notes)


def _facts_of_clients(table: PlainTable, client: Ints, n: int) -> dict[str, list[Any]]:
    """Return by column the value [n] of each client. Raises TraceError with each row that has another value."""
    problems, found = Problems(), {}
    for name, values in table.facts.items():
        of_client: list[Any] = [None] * n
        for row, (who, value) in enumerate(zip(client.tolist(), values, strict=True)):
            if of_client[who] is None:
                of_client[who] = value
            elif value not in (None, of_client[who]):
                problems.add(
                    f"{table.place(row)}, client {table.clients[row][:80]!r}: expected the {name} of the rows before, "
                    f"{shown(of_client[who])}, found {shown(value)}"
                )
        found[name] = of_client
    problems.check()
    return found


def by_name(names: Iterable[str]) -> list[str]:
    """Return names of clients in the order in which a Task numbers them."""
    each = list(names)
    numbers = as_numbers(each)
    return sorted(each) if numbers is None else [name for _, name in sorted(zip(numbers, each, strict=True))]


def _of_presence(kind: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Return [n] whether a row says who is online."""
    return np.isin(kind, ["online", "unknown", _OFFLINE])


def _merged(table: PlainTable, client: Ints) -> tuple[PlainTable, Ints]:
    """Return a table whose intervals of one client and kind that overlap or meet are one; those with values stay."""
    last: dict[tuple[int, str], int] = {}
    end_us, kept = table.end_us.copy(), []
    for row in np.argsort(table.start_us, kind="stable").tolist():
        key = int(client[row]), table.kinds[row]
        before = last.get(key)
        if before is None or key[1] in MODELLED or table.start_us[row] > end_us[before]:
            kept.append(row)
            last[key] = row
        else:
            end_us[before] = max(end_us[before], table.end_us[row])
    rows = sorted(kept)
    merged = replace(
        table,
        clients=[table.clients[row] for row in rows],
        start_us=table.start_us[rows],
        end_us=end_us[rows],
        kinds=[table.kinds[row] for row in rows],
        values=table.values[rows],
        place=lambda row: table.place(rows[row]),
    )
    return merged, client[rows]


def _with_unknown(
    table: PlainTable, client: Ints, more: Windows
) -> tuple[Ints, Ints, Ints, list[str], NDArray[np.float64]]:
    """Return the columns of a Trace: the rows of the table, and the windows of which nothing is known."""
    rows = [row for row, kind in enumerate(table.kinds) if kind != _OFFLINE]
    values = table.values[rows]
    return (
        np.concatenate([client[rows], more.client]),
        np.concatenate([table.start_us[rows], more.start_us]),
        np.concatenate([table.end_us[rows], more.end_us]),
        [*(table.kinds[row] for row in rows), *["unknown"] * len(more.client)],
        np.concatenate([np.where(np.isnan(values), 1.0, values), np.ones(len(more.client))]),
    )


def row_problem(
    interval_us: tuple[float, float],
    kind: str,
    value: float,
    cells: tuple[object, object],
    times: TimeColumns,
) -> str | None:
    """Return what is wrong with a row, or None; `cells` are start and end as the columns `times` have them."""
    known = (*KINDS, _OFFLINE)
    if kind not in known:
        return f"there is no kind {shown(kind)}{closest(kind[:80], known)}"
    start_us, end_us = interval_us
    outside = not (0 <= start_us <= LONGEST_US and end_us <= LONGEST_US)
    if outside or round(end_us) <= round(start_us):
        dates = times["start"][1] == "date"
        start, end = (
            str(cell)[:80] + (f" {times[time][1]}" if not dates else "")
            for time, cell in zip(_TIMES, cells, strict=True)
        )
        if outside:
            expected = "dates from 1970 to 2070" if dates else "times from 0 to 100 years"
            return f"expected {expected}, found {start} to {end}"
        return f"expected an end after the start, found {end} after {start}"
    if kind in MODELLED and not 1e-300 < value < 1e300:
        return f"expected a finite value above 0 for {kind!r}, found {value:g}"
    return None


def _check_apart(table: PlainTable, client: Ints) -> None:
    """Raise TraceError with each row that overlaps the one before it, by start, of its client and kind."""
    start_us, end_us = table.start_us, table.end_us
    kind = np.array([KINDS.index("online" if k == _OFFLINE else k) for k in table.kinds])
    problems, show = Problems(), partial(_shown_time, table)
    order = np.lexsort((start_us, kind, client))
    before, after = order[:-1], order[1:]
    same = (client[before] == client[after]) & (kind[before] == kind[after])
    for i in np.flatnonzero(same & (start_us[after] < end_us[before])).tolist():
        other, row = int(before[i]), int(after[i])
        both = table.kinds[row] == table.kinds[other]
        merge = (
            "; --option merge=true joins such intervals" if both and table.kinds[row] not in MODELLED else ""
        )
        problems.add(
            f"{table.place(row)}, client {table.clients[row][:80]!r}: {table.kinds[row]} from {show(start_us[row])} to "
            f"{show(end_us[row])} overlaps {table.place(other)}, {'' if both else f'{table.kinds[other]} '}from "
            f"{show(start_us[other])} to {show(end_us[other])}{merge}"
        )
    problems.check()


def _shown_time(table: PlainTable, time_us: int) -> str:
    """Return a time of a row for messages: the date, or the time from 0."""
    if table.dates:
        return str(EPOCH + timedelta(microseconds=int(time_us) + table.origin_us))
    return show_us(int(time_us))


def _check_horizon(table: PlainTable, horizon_us: int) -> None:
    latest = int(table.end_us.argmax())
    last_us = int(table.end_us[latest])
    if last_us > horizon_us:
        raise TraceError(
            f"{table.place(latest)}, client {table.clients[latest][:80]!r}: expected intervals up to the horizon of "
            f"{show_us(horizon_us)}, found an end after {show_us(last_us)}"
        )


def _check_described(name: str, ids: Sequence[str], client: Ints, kind: Any) -> None:
    """Raise TraceError with each client that is online but lacks a speed that others have."""
    problems, online = Problems(), np.unique(client[kind == "online"])
    for modelled in MODELLED:
        described = np.unique(client[kind == modelled])
        for lacking in np.setdiff1d(online, described).tolist() if len(described) else []:
            problems.add(
                f"{name}: client {ids[lacking][:80]!r} is online at times but has no {modelled!r} interval, while"
                f" {ids[int(described[0])][:80]!r} has one: describe {modelled!r} for every client or for none"
            )
    problems.check()


def _unknown(table: PlainTable, client: Ints, n: int, horizon_us: int, outside: str) -> Windows:
    """Return the unknown stretches: all time of clients without presence rows and, if `outside` is `unknown`, the time
    before the first and after the last presence row of the others.
    """
    presence = _of_presence(np.array(table.kinds))
    first, last = np.full(n, horizon_us), np.zeros(n, np.int64)
    np.minimum.at(first, client[presence], table.start_us[presence])
    np.maximum.at(last, client[presence], table.end_us[presence])
    without = np.flatnonzero(last == 0)
    others = np.flatnonzero(last > 0) if outside == "unknown" else without[:0]
    owner = np.concatenate([without, others, others])
    start = np.concatenate([np.zeros(len(without) + len(others), np.int64), last[others]])
    end = np.concatenate([np.full(len(without), horizon_us), first[others], np.full(len(others), horizon_us)])
    keep = start < end
    return Windows(owner[keep], start[keep], end[keep])

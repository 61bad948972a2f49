"""Checks of a table of intervals: every problem is found at once and told with its client and row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedsim.common.arrow_columns import array, texts
from fedsim.common.errors import closest

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

KINDS = ("online", "compute", "downlink", "uplink", "fault", "unknown")
"""online: the client is there (value unused). compute: seconds per sample at batch size 1. downlink and
uplink: bytes per second. fault: a job that runs inside it is lost (value unused). unknown: nothing is known about
whether the client is there (value unused)."""
MODELLED = ("compute", "downlink", "uplink")
"""Kinds that describe how fast a phase of a job goes."""
COLUMNS = ("client", "start_us", "end_us", "kind", "value")
MOST_LINES = 20


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table of intervals as arrays of equal length; `kind` holds indices into KINDS."""

    client: Ints
    start_us: Ints
    end_us: Ints
    kind: Ints
    value: NDArray[np.float64]

    def rows(self, which: Mask | Ints | slice) -> Columns:
        """Return some of the rows."""
        client, start, end = self.client[which], self.start_us[which], self.end_us[which]
        return Columns(client, start, end, self.kind[which], self.value[which])


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of problem: the rows that have it, and how to say it of a row."""

    rows: Ints
    say: Callable[[int], str]


class Malformed(Exception):
    """Carries problem lines that make it pointless to look any further."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


def columns_of(table: pa.Table) -> Columns:
    """Read the five columns. Raises Malformed with a line for each unreadable column and each null."""
    lines = [
        f"column {name!r} is missing{_instead(name, table.column_names)}"
        for name in COLUMNS
        if name not in table.column_names
    ]
    lines += [
        f"unknown column {name!r}; a trace has {', '.join(COLUMNS)}"
        for name in table.column_names
        if name not in COLUMNS
    ]
    arrays: dict[str, Any] = {}
    for name in COLUMNS:
        if name in table.column_names:
            try:
                arrays[name] = _array(table, name)
            except Malformed as problem:
                lines += problem.lines
    if lines:
        raise Malformed(lines)
    return Columns(**arrays)


def row_problems(columns: Columns, clients: int, horizon_us: int) -> Iterator[Finding]:
    """Find every row that breaks the rules of a trace of `clients` clients over `horizon_us`."""
    client, start, end = columns.client, columns.start_us, columns.end_us

    def bad(mask: Mask, say: Callable[[int], str]) -> Finding:
        return Finding(np.flatnonzero(mask), say)

    outside = (client < 0) | (client >= clients)
    yield bad(outside, lambda i: f"expected a client from 0 to {clients - 1}")
    yield bad(start < 0, lambda i: f"start_us {start[i]} is before 0")
    yield bad(end < start, lambda i: f"end_us {end[i]} is before start_us {start[i]}")
    yield bad(
        end == start, lambda i: f"start_us and end_us are both {start[i]}: an interval must have a length"
    )
    yield bad(end > horizon_us, lambda i: f"end_us {end[i]} is beyond the horizon {horizon_us}")
    modelled = np.isin(columns.kind, [KINDS.index(kind) for kind in MODELLED])
    value = columns.value
    yield bad(
        modelled & ~(np.isfinite(value) & (value > 0)),
        lambda i: f"expected a finite value above 0, found {value[i]}",
    )
    yield from _overlaps(columns, ~outside & (start >= 0) & (start < end) & (end <= horizon_us), horizon_us)


def undescribed(columns: Columns, clients: int) -> Iterator[str]:
    """Say which clients are online but lack a kind that others have: half a description."""
    present = np.zeros((len(KINDS), clients), dtype=bool)
    present[columns.kind, columns.client] = True
    for kind in MODELLED:
        mask = present[KINDS.index(kind)]
        lacking = np.flatnonzero(present[0] & ~mask)
        if mask.any() and len(lacking):
            has = int(np.flatnonzero(mask)[0])
            yield from (
                f"client {c} is online at times but has no {kind!r} interval, while client {has} has one:"
                f" describe {kind!r} for every client or for none"
                for c in lacking.tolist()
            )


def told(findings: list[Finding], columns: Columns, more: list[str]) -> str:
    """Write findings as lines in order of row, then `more`."""
    rows = np.concatenate([f.rows for f in findings])
    which = np.repeat(np.arange(len(findings)), [len(f.rows) for f in findings])
    first = np.lexsort((which, rows))[:MOST_LINES].tolist()
    lines = [f"{where(columns, int(rows[i]))}: {findings[which[i]].say(int(rows[i]))}" for i in first]
    return listed(lines + more, len(rows) + len(more))


def listed(lines: list[str], total: int | None = None) -> str:
    """Write problems one to a line; beyond MOST_LINES only how many of `total` there are."""
    total = len(lines) if total is None else total
    if total == 1:
        return lines[0]
    shown = lines[:MOST_LINES]
    hidden = [f"... and {total - len(shown)} more"] if total > len(shown) else []
    return f"{total} problems:\n" + "\n".join(f"  {line}" for line in [*shown, *hidden])


def where(columns: Columns, row: int) -> str:
    """Name a row for people: its number from 0, client and kind."""
    return f"row {row} (client {columns.client[row]}, {KINDS[columns.kind[row]]})"


def _overlaps(columns: Columns, sound: Mask, horizon_us: int) -> Iterator[Finding]:
    for kind in range(len(KINDS)):
        rows = np.flatnonzero(sound & (columns.kind == kind))
        # Clients follow each other on one axis, so that one running maximum serves them all.
        base = columns.client[rows] * (horizon_us + 1)
        start, end = base + columns.start_us[rows], base + columns.end_us[rows]
        order = np.lexsort((rows, end, start))
        reached = np.maximum.accumulate(end[order]) if len(rows) else end
        clash = np.flatnonzero(start[order][1:] < reached[:-1]) + 1
        if len(clash):
            # The interval that reaches furthest is the first one at which the running maximum has its value.
            other = rows[order][np.searchsorted(reached, reached[clash - 1], side="left")]
            yield _overlap(columns, rows[order][clash], other)


def _overlap(columns: Columns, rows: Ints, others: Ints) -> Finding:
    partner = dict(zip(rows.tolist(), others.tolist(), strict=True))
    start, end = columns.start_us, columns.end_us

    def say(i: int) -> str:
        j = partner[i]
        return f"[{start[i]}, {end[i]}) overlaps row {j}, [{start[j]}, {end[j]}), of the same client and kind"

    return Finding(rows, say)


def _instead(name: str, found: list[str]) -> str:
    near = closest(name, [f for f in found if f not in COLUMNS])
    return near.replace("did you mean", "is it") if near.startswith("; did") else ""


def _array(table: pa.Table, name: str) -> NDArray[Any]:
    column = table.column(name)
    if column.null_count:
        rows = np.flatnonzero(column.is_null().to_numpy())
        lines = [f"{_loose_where(table, r)}: {name} is null" for r in rows[:MOST_LINES].tolist()]
        raise Malformed(
            lines + [f"... in all {len(rows)} rows have a null {name}"] * (len(rows) > len(lines))
        )
    if name == "kind":
        return _kinds(table)
    wanted, fits = (pa.float64(), _is_number) if name == "value" else (pa.int64(), pa.types.is_integer)
    if not fits(column.type):
        shown = "a number" if name == "value" else "an integer"
        raise Malformed([f"column {name!r} has type {column.type}, expected {shown} ({wanted})"])
    try:
        return array(column.cast(wanted))
    except pa.ArrowInvalid as error:
        raise Malformed([f"column {name!r} does not fit {wanted}: {error}"]) from error


def _kinds(table: pa.Table) -> Ints:
    column = table.column("kind")
    of = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(of) or pa.types.is_large_string(of)):
        raise Malformed([f"column 'kind' has type {column.type}, expected text (dictionary<string>)"])
    index = pc.index_in(column.cast(pa.string()), value_set=texts(KINDS))
    if index.null_count:
        rows = np.flatnonzero(index.is_null().to_numpy())
        found = [column[r].as_py() for r in rows[:MOST_LINES].tolist()]
        lines = [
            f"{_loose_where(table, r)}: unknown kind {name!r}{closest(name, KINDS)}"
            for r, name in zip(rows.tolist(), found, strict=False)
        ]
        raise Malformed(
            lines + [f"... in all {len(rows)} rows have an unknown kind"] * (len(rows) > len(found))
        )
    return array(index).astype(np.int64)


def _loose_where(table: pa.Table, row: int) -> str:
    known = "client" in table.column_names
    client = table.column("client")[row].as_py() if known else None
    return f"row {row}" if client is None else f"row {row} (client {client})"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))

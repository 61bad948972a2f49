"""Check a table of intervals: find every problem at once, and name its client and row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedsim.common.arrays import Ints, Mask
from fedsim.common.arrow_columns import array, texts
from fedsim.common.errors import closest

KINDS = ("online", "compute", "downlink", "uplink", "fault", "unknown")
"""online: the client is online (value unused). compute: seconds per sample at batch size 1. downlink and
uplink: bytes per second. fault: a job that runs inside it is lost (value unused). unknown: it is not known whether
the client is online (value unused)."""
MODELLED = ("compute", "downlink", "uplink")
"""Kinds whose value is the speed of a phase of a job."""
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

    def rows(self, rows: Mask | Ints | slice) -> Columns:
        """Return some of the rows."""
        return Columns(*(getattr(self, name)[rows] for name in COLUMNS))


Finding = tuple[Ints, Callable[[int], str]]
"""One kind of problem: the rows that have it, and its message for each row."""


class Malformed(Exception):
    """Columns that cannot be read, so that rows cannot be checked; its arguments are one line for each problem."""


def columns_of(table: pa.Table) -> Columns:
    """Return the five columns as arrays. Raises Malformed with a line for each unreadable column and each null."""
    present, known = table.column_names, ", ".join(COLUMNS)
    lines = [
        f"column {name!r} is missing{_suggestion(name, present)}" for name in COLUMNS if name not in present
    ]
    lines += [f"unknown column {name!r}; a trace has {known}" for name in present if name not in COLUMNS]
    lines += [f"column {name!r} is there {n} times" for name, n in Counter(present).items() if n > 1]
    arrays: dict[str, Any] = {}
    for name in COLUMNS:
        if present.count(name) == 1:
            try:
                arrays[name] = _array(table, name)
            except Malformed as error:
                lines += error.args
    if lines:
        raise Malformed(*lines)
    return Columns(**arrays)


def row_problems(columns: Columns, clients: int, horizon_us: int) -> Iterator[Finding]:
    """Yield the rows that break the rules of a trace of `clients` clients over `horizon_us`, problem by problem."""
    client, start, end, value = columns.client, columns.start_us, columns.end_us, columns.value
    rows = np.flatnonzero
    outside = (client < 0) | (client >= clients)
    yield rows(outside), lambda i: f"expected a client from 0 to {clients - 1}"
    yield rows(start < 0), lambda i: f"start_us {start[i]} is before 0"
    yield rows(end < start), lambda i: f"end_us {end[i]} is before start_us {start[i]}"
    no_length = "an interval must have a length"
    yield rows(end == start), lambda i: f"start_us and end_us are both {start[i]}: {no_length}"
    yield rows(end > horizon_us), lambda i: f"end_us {end[i]} is beyond the horizon {horizon_us}"
    modelled = np.isin(columns.kind, [KINDS.index(kind) for kind in MODELLED])
    speedless = modelled & ~(np.isfinite(value) & (value > 0))
    yield rows(speedless), lambda i: f"expected a finite value above 0, found {value[i]}"
    yield from _overlaps(columns, ~outside & (start >= 0) & (start < end) & (end <= horizon_us), horizon_us)


def undescribed(columns: Columns, clients: int) -> Iterator[str]:
    """Yield a line for each client that is online but lacks a speed that other clients have."""
    described = np.zeros((len(KINDS), clients), dtype=bool)
    described[columns.kind, columns.client] = True
    for kind in MODELLED:
        mask = described[KINDS.index(kind)]
        lacking = np.flatnonzero(described[0] & ~mask)
        if mask.any() and len(lacking):
            has = int(np.flatnonzero(mask)[0])
            yield from (
                f"client {c} is online at times but has no {kind!r} interval, while client {has} has one:"
                f" describe {kind!r} for every client or for none"
                for c in lacking.tolist()
            )


def problem_text(findings: list[Finding], columns: Columns, more: list[str]) -> str:
    """Write findings as lines in order of row, then `more`."""
    flaws = [(row, message) for rows, message in findings for row in np.sort(rows)[:MOST_LINES].tolist()]
    flaws.sort(key=lambda flaw: flaw[0])
    lines = [f"{row_name(columns, row)}: {message(row)}" for row, message in flaws[:MOST_LINES]]
    return listed(lines + more, sum(len(rows) for rows, _ in findings) + len(more))


def listed(lines: list[str], total: int | None = None) -> str:
    """Write problems, one a line: the first MOST_LINES, then how many of `total` are not shown."""
    total = len(lines) if total is None else total
    if total == 1:
        return lines[0]
    shown = lines[:MOST_LINES]
    hidden = [f"... and {total - len(shown)} more"] if total > len(shown) else []
    return f"{total} problems:\n" + "\n".join(f"  {line}" for line in [*shown, *hidden])


def row_name(columns: Columns, row: int) -> str:
    """Return the name of a row in messages: its number from 0, its client and kind."""
    return f"row {row} (client {columns.client[row]}, {KINDS[columns.kind[row]]})"


def _overlaps(columns: Columns, sound: Mask, horizon_us: int) -> Iterator[Finding]:
    for kind in range(len(KINDS)):
        rows = np.flatnonzero(sound & (columns.kind == kind))
        # Clients follow each other on one axis, so that one running maximum serves all of them.
        base = columns.client[rows] * (horizon_us + 1)
        start, end = base + columns.start_us[rows], base + columns.end_us[rows]
        order = np.lexsort((rows, end, start))
        reached = np.maximum.accumulate(end[order]) if len(rows) else end
        clash = np.flatnonzero(start[order][1:] < reached[:-1]) + 1
        if len(clash):
            # The interval that reaches furthest is the first at which the running maximum has its final value.
            other = rows[order][np.searchsorted(reached, reached[clash - 1], side="left")]
            yield _overlap(columns, rows[order][clash], other)


def _overlap(columns: Columns, rows: Ints, others: Ints) -> Finding:
    partner = dict(zip(rows.tolist(), others.tolist(), strict=True))
    start, end = columns.start_us, columns.end_us

    def message(i: int) -> str:
        j = partner[i]
        return f"[{start[i]}, {end[i]}) overlaps row {j}, [{start[j]}, {end[j]}), of the same client and kind"

    return rows, message


def _suggestion(name: str, present: list[str]) -> str:
    """Return the end of a message that suggests an unknown column in place of a missing one."""
    near = closest(name, [column for column in present if column not in COLUMNS])
    return near.replace("did you mean", "is it") if near.startswith("; did") else ""


def _array(table: pa.Table, name: str) -> NDArray[Any]:
    column = table.column(name)
    _refuse(table, column, f"a null {name}", lambda _: f"{name} is null")
    if name == "kind":
        return _kinds(table)
    wanted, fits = (pa.float64(), is_number) if name == "value" else (pa.int64(), pa.types.is_integer)
    if not fits(column.type):
        expected = "a number" if name == "value" else "an integer"
        raise Malformed(f"column {name!r} has type {column.type}, expected {expected} ({wanted})")
    try:
        return array(column.cast(wanted))
    except pa.ArrowInvalid as error:
        raise Malformed(f"column {name!r} does not fit {wanted}: {error}") from error


def _kinds(table: pa.Table) -> Ints:
    column = table.column("kind")
    value_type = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(value_type) or pa.types.is_large_string(value_type)):
        raise Malformed(f"column 'kind' has type {column.type}, expected text (dictionary<string>)")
    index = pc.index_in(column.cast(pa.string()), value_set=texts(KINDS))

    def unknown(row: int) -> str:
        kind = column[row].as_py()
        return f"unknown kind {kind!r}{closest(kind, KINDS)}"

    _refuse(table, index, "an unknown kind", unknown)
    return array(index).astype(np.int64)


def _refuse(table: pa.Table, column: pa.ChunkedArray, flaw: str, message: Callable[[int], str]) -> None:
    """Raise Malformed with a line for each of the first rows in which a column is null, if there are any."""
    if not column.null_count:
        return
    rows = np.flatnonzero(column.is_null().to_numpy()).tolist()
    lines = []
    for row in rows[:MOST_LINES]:
        client = table.column("client")[row].as_py() if "client" in table.column_names else None
        name = f"row {row}" if client is None else f"row {row} (client {client})"
        lines.append(f"{name}: {message(row)}")
    if len(rows) > len(lines):
        lines.append(f"... in all {len(rows)} rows have {flaw}")
    raise Malformed(*lines)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds integers or floating-point numbers."""
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))

"""Read tables and JSON, naming the place of each error, and build Traces of speeds and of windows."""

from __future__ import annotations

import csv
import io
import json
import math
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from fedsim.common.arrays import Ints
from fedsim.common.errors import TraceError
from fedsim.common.units import DAY_US, US
from fedsim.worlds.importer import Source
from fedsim.worlds.trace import AfterEnd, Trace, TraceFacts

LONGEST_S = 3.2e9
"""Times beyond a hundred years count as mistakes."""
MOST_LINES = 20


@dataclass(slots=True)
class Problems:
    """Collects the problems of files, to raise one error with all of them."""

    lines: list[str] = field(default_factory=list)
    total: int = 0

    def add(self, line: str) -> None:
        """Add a problem; only the first MOST_LINES keep their text."""
        self.total += 1
        if self.total <= MOST_LINES:
            self.lines.append(line)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Add a TraceError that is raised inside, and continue after the block; of several problems the first."""
        try:
            yield
        except TraceError as error:
            first, *others = str(error).split("\n  ")
            self.add(f"{others[0]} (and more in this file: {first.removesuffix(':')})" if others else first)

    def check(self) -> None:
        """Raise TraceError with all problems, if there are any."""
        more = [f"... and {self.total - MOST_LINES} more"] if self.total > MOST_LINES else []
        if self.total == 1:
            raise TraceError(self.lines[0])
        if self.total:
            raise TraceError(f"{self.total} problems:\n" + "\n".join(f"  {s}" for s in [*self.lines, *more]))


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table: its number in the file, from 1, and its cells."""

    line: int
    cells: list[str]


def rows(source: Source, separator: str = ",") -> list[Row]:
    """Return the lines of a CSV file that are not empty, cells stripped of blanks. Raises TraceError.

    With a blank as `separator`, any number of blanks and tabs separates cells, without quoting.
    """
    text = source.text()
    if separator == " ":
        split = [Row(i, line.split()) for i, line in enumerate(text.splitlines(), start=1)]
        return [row for row in split if row.cells]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        stripped = (Row(reader.line_num, [cell.strip() for cell in cells]) for cells in reader)
        return [row for row in stripped if any(row.cells)]
    except csv.Error as error:
        raise TraceError(f"{source.name}, line {reader.line_num}: not a table: {error}") from error


def columns(source: Source, wanted: Sequence[str], separator: str = ",") -> tuple[list[int], list[list[str]]]:
    """Return the line numbers and the wanted columns, as text, of a table with a header.

    Other columns are ignored. Raises TraceError for missing columns and for lines that are too short.
    """
    lines = rows(source, separator)
    if not lines:
        raise TraceError(f"{source.name}: expected a header and rows, found an empty file")
    header, problems = lines[0].cells, Problems()
    for name in wanted:
        if name not in header:
            problems.add(
                f"{source.name}, line {lines[0].line}: expected a column {name!r}, found {shown(header)}"
            )
    problems.check()
    at = [header.index(name) for name in wanted]
    for row in lines[1:]:
        if len(row.cells) <= max(at):
            problems.add(
                f"{source.name}, line {row.line}: expected {len(header)} columns, found {len(row.cells)}"
            )
    problems.check()
    return [row.line for row in lines[1:]], [[row.cells[i] for row in lines[1:]] for i in at]


def json_of(source: Source) -> Any:
    """Return the content of a JSON file. Raises TraceError, also for a key that occurs twice in an object."""
    try:
        return json.loads(source.text(), object_pairs_hook=_unique_keys)
    except RecursionError:
        raise TraceError(f"{source.name}: not a trace: JSON that is nested too deeply") from None
    except ValueError as error:
        raise TraceError(f"{source.name}: not valid JSON: {error}") from error


def of_type(value: Any, kind: type | tuple[type, ...], place: str) -> Any:
    """Return a value of a given type, such as dict. Raises TraceError that names the place."""
    if not isinstance(value, kind):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise TraceError(f"{place}: expected {names}, found {shown(value)}")
    return value


def member(value: Any, key: str, place: str) -> Any:
    """Return a member of a JSON object. Raises TraceError if `value` is no object, or lacks the key."""
    if key not in of_type(value, dict, place):
        raise TraceError(f"{place}: expected a key {key!r}, found {shown(sorted(map(str, value))[:12])}")
    return value[key]


def number(value: Any, place: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a number, or a text that holds one, from `low` to `high`. Raises TraceError that names the place."""
    result = math.nan
    if isinstance(value, str) and value.isascii() and "_" not in value:
        with suppress(ValueError):
            result = float(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        result = float(value) if abs(value) < 1e300 else math.inf
    if not (math.isfinite(result) and low <= result <= high):
        raise TraceError(f"{place}: expected a number{_range(low, high)}, found {shown(value)}")
    return result


def positive(value: Any, place: str, high: float = 1e15) -> float:
    """Return a number from 1e-15 to `high`, such as a speed. Raises TraceError that names the place."""
    result = number(value, place, 0, high)
    if result < 1e-15:
        raise TraceError(f"{place}: expected a number above 0, found {shown(value)}")
    return result


def whole(value: Any, place: str, low: float = 0, high: float = 2**53) -> int:
    """Return a whole number from `low` to `high`. Raises TraceError that names the place."""
    result = number(value, place, low, high)
    if result != int(result):
        raise TraceError(f"{place}: expected a whole number, found {shown(value)}")
    return int(result)


def time_us(value: Any, place: str) -> int:
    """Return a time of at least 0 seconds as whole microseconds. Raises TraceError that names the place."""
    return round(number(value, place, 0, LONGEST_S) * US)


def client_id(key: Any, place: str, seen: set[str]) -> str:
    """Return a client's id as text, and add it to `seen`. Raises TraceError if it is no id, or is in `seen`."""
    if not isinstance(key, int | str) or (isinstance(key, int) and abs(key) > 2**63):
        raise TraceError(f"{place}: expected a client id, found {shown(key)}")
    if str(key) in seen:
        raise TraceError(f"{place}: expected each client once, found {shown(str(key))} twice")
    seen.add(str(key))
    return str(key)


def missing(text: str) -> bool:
    """Return whether a cell of a table stands for a missing value."""
    return text.strip().lower() in ("", "-", "nan", "na", "null", "none")


def shown(value: Any) -> str:
    """Return a short text of a value for a message, however large or deep the value is."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # integers of thousands of digits have no text
        return f"a {type(value).__name__} of enormous size"


def closed(client: ArrayLike, start_us: ArrayLike, end_us: ArrayLike) -> tuple[Ints, Ints]:
    """Return starts and ends of closed windows [start, end] as half-open intervals [start, end + 1 us).

    Windows are in order of (client, start). An interval that would reach into the next window of its client ends where
    that starts; so of equal windows all but the last become empty.
    """
    client, start, end = np.asarray(client), np.asarray(start_us, np.int64), np.asarray(end_us, np.int64) + 1
    following = np.append(np.where(client[1:] == client[:-1], start[1:], np.iinfo(np.int64).max), 0)
    if len(end):
        following[-1] = end[-1]
    return start, np.minimum(end, following[: len(end)])


def about(ids: Sequence[str], facts: Mapping[str, Sequence[Any]] | None = None) -> pa.Table:
    """Return facts about clients: a column `id`, and one for each of `facts` that has any value."""
    columns = {name: values for name, values in (facts or {}).items() if any(v is not None for v in values)}
    try:
        return pa.table(
            {"id": pa.array(list(ids), pa.string()), **{k: pa.array(v) for k, v in columns.items()}}
        )
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise TraceError(
            f"ids and facts of clients: expected numbers and sound text, found {error}"
        ) from None


def speed_table(
    ids: Sequence[str],
    speeds: Mapping[str, ArrayLike],
    facts: Mapping[str, Sequence[Any]] | None = None,
) -> Trace:
    """Return a Trace of clients with constant speeds and unknown availability.

    `speeds` holds by kind (`compute`, `downlink`, `uplink`) one value for each client, NaN where it is missing.
    """
    n = len(ids)
    clients, kinds, values = [np.arange(n)], ["unknown"] * n, [np.ones(n)]
    for kind, of_clients in speeds.items():
        speed = np.asarray(of_clients, np.float64)
        present = np.flatnonzero(~np.isnan(speed))
        clients.append(present)
        values.append(speed[present])
        kinds += [kind] * len(present)
    client = np.concatenate(clients)
    start_us, end_us = np.zeros(len(client), np.int64), np.full(len(client), DAY_US)
    world: TraceFacts = {"clients": n, "horizon_us": DAY_US, "after_end": "repeat"}
    world["about"] = about(ids, facts)
    return Trace.of(client, start_us, end_us, kinds, np.concatenate(values), **world)


@dataclass(frozen=True, slots=True)
class Windows:
    """Half-open windows [start, end) in which clients are online: arrays of equal length."""

    client: Ints
    start_us: Ints
    end_us: Ints
    known: tuple[ArrayLike, ArrayLike] | None = None
    """The times, one or [clients] each, from which and up to which availability is known; None: always."""


def availability(
    windows: Windows,
    about: pa.Table,
    *,
    horizon_us: int,
    period_us: ArrayLike | None = None,
    origin: str = "",
    after_end: AfterEnd = "repeat",
) -> Trace:
    """Return a Trace of windows, with one client for each row of `about`.

    Availability is `unknown` before and after the times `windows.known`. The windows of a client repeat after its
    `period_us`; where that is 0 they repeat with the world.
    """
    n, kinds = about.num_rows, ["online"] * len(windows.client)
    client, start, end = windows.client, windows.start_us, windows.end_us
    if windows.known is not None:
        client, start, end = _with_unknown(windows, windows.known, n, horizon_us)
        kinds += ["unknown"] * 2 * n
    keep = start < end
    kinds = [kind for kind, kept in zip(kinds, keep.tolist(), strict=True) if kept]
    world: TraceFacts = {"clients": n, "horizon_us": horizon_us, "after_end": after_end, "origin": origin}
    world |= {"periods": None if period_us is None else {"online": period_us}, "about": about}
    return Trace.of(client[keep], start[keep], end[keep], kinds, **world)


def _with_unknown(
    windows: Windows, known: tuple[ArrayLike, ArrayLike], n: int, horizon_us: int
) -> tuple[Ints, Ints, Ints]:
    """Return client, start and end of the windows and, behind them, of the times that are not `known`."""
    first, last = (np.broadcast_to(np.asarray(a, np.int64), n) for a in known)
    client = np.concatenate([windows.client, np.arange(n), np.arange(n)])
    start = np.concatenate([windows.start_us, np.zeros(n, np.int64), last])
    end = np.concatenate([windows.end_us, first, np.full(n, horizon_us)])
    return client, start, end


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, _ in pairs if counts[key] > 1)
        raise ValueError(f"key {twice[:80]!r} stands twice in one object")
    return members


def _range(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    return f" from {low:g} to {high:g}" if math.isfinite(high) else f" of at least {low:g}"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 12
_SHORT.maxlevel = 3

"""What importers share: reading tables and JSON with places in messages, and putting Traces together."""

from __future__ import annotations

import csv
import io
import json
import math
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from fedsim.common.errors import TraceError
from fedsim.common.units import US
from fedsim.worlds.importer import Source
from fedsim.worlds.trace import AfterEnd, Trace

Ints = NDArray[np.int64]

DAY_US = 86_400 * US
LONGEST_S = 3.2e9
"""Times beyond a hundred years are taken for a mistake."""
MOST_LINES = 20


@dataclass(slots=True)
class Problems:
    """Collects what is wrong with files, to tell it all at once."""

    lines: list[str] = field(default_factory=list)
    total: int = 0

    def add(self, line: str) -> None:
        """Note a problem; only the first are kept word for word."""
        self.total += 1
        if self.total <= MOST_LINES:
            self.lines.append(line)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Note a TraceError that is raised inside, and go on behind it."""
        try:
            yield
        except TraceError as error:
            self.add(str(error))

    def check(self) -> None:
        """Raise TraceError if there are problems."""
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

    A `separator` of a blank stands for any number of blanks and tabs, without quoting.
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
    """Return line numbers and the wanted columns of a table with a header, as text.

    Further columns are passed over. Raises TraceError for missing columns and for lines that are too short.
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
    """Return the content of a JSON file. Raises TraceError, also for keys that stand twice in an object."""
    try:
        return json.loads(source.text(), object_pairs_hook=_once)
    except RecursionError:
        raise TraceError(f"{source.name}: not a trace: JSON that is nested too deeply") from None
    except ValueError as error:
        raise TraceError(f"{source.name}: not valid JSON: {error}") from error


def of_type(value: Any, kind: type | tuple[type, ...], place: str) -> Any:
    """Return a value that has a type such as dict. Raises TraceError that names the place."""
    if not isinstance(value, kind):
        names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
        raise TraceError(f"{place}: expected {names}, found {shown(value)}")
    return value


def member(value: Any, key: str, place: str) -> Any:
    """Return a member of a JSON object. Raises TraceError if it is none, or lacks the key."""
    if key not in of_type(value, dict, place):
        raise TraceError(f"{place}: expected a key {key!r}, found {shown(sorted(map(str, value))[:12])}")
    return value[key]


def number(value: Any, place: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a number, or a text that holds one, from `low` to `high`. Raises TraceError that names the place."""
    found = math.nan
    if isinstance(value, str) and value.isascii() and "_" not in value:
        try:
            found = float(value)
        except ValueError:
            found = math.nan
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found = float(value) if abs(value) < 1e300 else math.inf
    if not (math.isfinite(found) and low <= found <= high):
        raise TraceError(f"{place}: expected a number{_range(low, high)}, found {shown(value)}")
    return found


def positive(value: Any, place: str, high: float = 1e15) -> float:
    """Return a number above 0, such as a speed, of a size that can be real. Raises TraceError."""
    found = number(value, place, 0, high)
    if found < 1e-15:
        raise TraceError(f"{place}: expected a number above 0, found {shown(value)}")
    return found


def whole(value: Any, place: str, low: float = 0, high: float = 2**53) -> int:
    """Return a whole number. Raises TraceError that names the place."""
    found = number(value, place, low, high)
    if found != int(found):
        raise TraceError(f"{place}: expected a whole number, found {shown(value)}")
    return int(found)


def time_us(value: Any, place: str) -> int:
    """Return a time in seconds from 0 on as whole microseconds. Raises TraceError."""
    return round(number(value, place, 0, LONGEST_S) * US)


def client_id(key: Any, place: str, seen: set[str]) -> str:
    """Return a client's id as text, and note it. Raises TraceError if it is no id, or was seen before."""
    if not isinstance(key, int | str) or (isinstance(key, int) and abs(key) > 2**63):
        raise TraceError(f"{place}: expected a client id, found {shown(key)}")
    if str(key) in seen:
        raise TraceError(f"{place}: expected each client once, found {shown(str(key))} twice")
    seen.add(str(key))
    return str(key)


def missing(text: str) -> bool:
    """Tell whether a cell says that there is no value."""
    return text.strip().lower() in ("", "-", "nan", "na", "null", "none")


def shown(value: Any) -> str:
    """Write what was found for a message: short, however large or deep it is."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # integers of thousands of digits have no text
        return f"a {type(value).__name__} of enormous size"


def closed(client: ArrayLike, start_us: ArrayLike, end_us: ArrayLike) -> tuple[Ints, Ints]:
    """Return starts and ends of closed windows [start, end] as half-open intervals [start, end + 1 us).

    Windows are in order of (client, start). Where an interval would reach into the next window of its client it ends
    at the start of that; so of equal windows all but the last become empty.
    """
    client, start, end = np.asarray(client), np.asarray(start_us, np.int64), np.asarray(end_us, np.int64) + 1
    following = np.append(np.where(client[1:] == client[:-1], start[1:], np.iinfo(np.int64).max), 0)
    if len(end):
        following[-1] = end[-1]
    return start, np.minimum(end, following[: len(end)])


def about(ids: Sequence[str], facts: Mapping[str, Sequence[Any]] | None = None) -> pa.Table:
    """Return what is known of clients: column `id` and others; a column without any value is left out."""
    known = {k: v for k, v in (facts or {}).items() if any(x is not None for x in v)}
    try:
        return pa.table(
            {"id": pa.array(list(ids), pa.string()), **{k: pa.array(v) for k, v in known.items()}}
        )
    except (pa.ArrowException, ValueError, OverflowError, TypeError) as error:
        raise TraceError(
            f"ids and facts of clients: expected numbers and sound text, found {error}"
        ) from None


def speed_table(
    ids: Sequence[str],
    speeds: Mapping[str, ArrayLike],
    facts: Mapping[str, Sequence[Any]] | None = None,
    horizon_us: int = DAY_US,
) -> Trace:
    """Return a Trace of clients with constant speeds, of whose presence nothing is known.

    `speeds` holds by kind (`compute`, `downlink`, `uplink`) one value for each client, NaN where there is none.
    """
    n = len(ids)
    clients, kinds = [np.arange(n)], ["unknown"] * n
    values = [np.ones(n)]
    for kind, given in speeds.items():
        value = np.asarray(given, np.float64)
        has = np.flatnonzero(~np.isnan(value))
        clients.append(has)
        values.append(value[has])
        kinds += [kind] * len(has)
    client = np.concatenate(clients)
    return Trace.of(
        client,
        np.zeros(len(client), np.int64),
        np.full(len(client), horizon_us),
        kinds,
        np.concatenate(values),
        clients=n,
        horizon_us=horizon_us,
        after_end="repeat",
        about=about(ids, facts),
    )


def availability(
    ids: Sequence[str],
    client: ArrayLike,
    start_us: ArrayLike,
    end_us: ArrayLike,
    *,
    horizon_us: int,
    known: tuple[ArrayLike, ArrayLike] | None = None,
    period_us: ArrayLike | None = None,
    facts: Mapping[str, Sequence[Any]] | None = None,
    origin: str = "",
    after_end: AfterEnd = "repeat",
) -> Trace:
    """Return a Trace of windows [start, end) in which clients are online.

    `known` gives by client from when to when something is known: what lies before and after is `unknown`.
    `period_us` gives by client after how long the windows begin again (0: with the world).
    """
    one, begin, end = (np.asarray(a, np.int64) for a in (client, start_us, end_us))
    kinds, n = ["online"] * len(one), len(ids)
    if known is not None:
        first, last = (np.broadcast_to(np.asarray(a, np.int64), n) for a in known)
        one = np.concatenate([one, np.arange(n), np.arange(n)])
        begin = np.concatenate([begin, np.zeros(n, np.int64), last])
        end = np.concatenate([end, first, np.full(n, horizon_us)])
        kinds += ["unknown"] * 2 * n
    some = begin < end
    return Trace.of(
        one[some],
        begin[some],
        end[some],
        [kind for kind, keep in zip(kinds, some.tolist(), strict=True) if keep],
        clients=n,
        horizon_us=horizon_us,
        after_end=after_end,
        origin=origin,
        periods=None if period_us is None else {"online": period_us},
        about=about(ids, facts),
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice[:80]!r} stands twice in one object")
    return found


def _range(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return ""
    return f" from {low:g} to {high:g}" if math.isfinite(high) else f" of at least {low:g}"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 12
_SHORT.maxlevel = 3

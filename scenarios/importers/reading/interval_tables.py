"""Tables of intervals from other programs: columns client, start, end, and perhaps kind and value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import ConfigError, TraceError, closest
from fedsim.common.units import duration_us
from fedsim.scenarios.importers.reading.files import Ints, Problems, about, shown
from fedsim.worlds.importer import Imported
from fedsim.worlds.trace import KINDS, MODELLED, AfterEnd, Trace

Unit = Literal["us", "ms", "s", "min", "h"]
UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
LONGEST_US = 3.2e15
_TIMES = ("start", "end")


@dataclass(frozen=True, slots=True)
class Plain:
    """Options that plain tables share."""

    unit: Unit
    kind: str
    horizon: str | float | None
    after_end: AfterEnd
    outside: Literal["offline", "unknown"]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"importer option 'kind': there is no kind {self.kind!r}{closest(self.kind, KINDS)}"
            )
        self.horizon_us()

    def horizon_us(self) -> int | None:
        """Return the horizon that is asked for. Raises ConfigError."""
        try:
            found = None if self.horizon is None else duration_us(self.horizon)
        except ValueError as error:
            raise ConfigError(f"importer option 'horizon': {error}") from error
        if found is not None and not 1 <= found <= LONGEST_US:
            raise ConfigError(f"importer option 'horizon': expected up to 100 years, found {self.horizon!r}")
        return found


def time_columns(header: Sequence[str], name: str, unit: Unit) -> dict[str, tuple[str, int]]:
    """Return by `start` and `end` the column that holds it and its microseconds per unit. Raises TraceError.

    `start_s`, `start_ms`, ... say their unit; a bare `start` is in `unit`. Unknown columns are refused.
    """
    found = {}
    for time in _TIMES:
        names = {time: UNITS_US[unit]} | {f"{time}_{u}": scale for u, scale in UNITS_US.items()}
        there = [(n, scale) for n, scale in names.items() if n in header]
        if len(there) != 1:
            raise TraceError(
                f"{name}: expected one column of {', '.join(names)}, found {shown(list(header))}"
            )
        found[time] = there[0]
    known = {"client", "kind", "value", *(column for column, _ in found.values())}
    if "client" not in header:
        raise TraceError(f"{name}: expected a column 'client', found {shown(list(header))}")
    strange = [column for column in header if column not in known]
    if strange or len(set(header)) < len(header):
        what = (
            f"unknown column {shown(strange[0])}{closest(strange[0][:80], known)}"
            if strange
            else "a column twice"
        )
        raise TraceError(f"{name}: {what}")
    return found


def plain_trace(
    name: str,
    clients: Sequence[str],
    start_us: Ints,
    end_us: Ints,
    kinds: Sequence[str],
    values: NDArray[np.float64],
    options: Plain,
    place: Callable[[int], str],
) -> Imported:
    """Return the Trace of a table whose rows have been checked; clients are numbered as they first appear.

    `place` says where a row stands, for messages.
    """
    if not len(start_us):
        raise TraceError(f"{name}: expected rows, found none")
    ids, client = _numbered(clients)
    _check_apart(ids, client, start_us, end_us, kinds, place)
    _check_described(name, ids, client, np.array(kinds))
    latest = int(end_us.argmax())
    last = int(end_us[latest])
    horizon = options.horizon_us() or last
    if last > horizon:
        raise TraceError(
            f"{place(latest)}, client {clients[latest][:80]!r}: expected intervals up to the horizon of {horizon} us,"
            f" found an end at {last} us"
        )
    kind = np.array(kinds)
    more = _unknown(len(ids), client, start_us, end_us, kind, horizon, options.outside)
    trace = _named(
        name,
        np.concatenate([client, more[0]]),
        np.concatenate([start_us, more[1]]),
        np.concatenate([end_us, more[2]]),
        [*kinds, *["unknown"] * len(more[0])],
        np.concatenate([np.where(np.isnan(values), 1.0, values), np.ones(len(more[0]))]),
        clients=len(ids),
        horizon_us=horizon,
        after_end=options.after_end,
        about=about(ids),
    )
    return Imported(
        trace, {"rows": len(start_us), "clients_of_unknown_presence": _absent(len(ids), client, kind)}
    )


def row_problem(start: float, end: float, kind: str, value: float) -> str | None:
    """Say what is wrong with a row (times in microseconds), None if it is sound."""
    if kind not in KINDS:
        return f"there is no kind {shown(kind)}{closest(kind[:80], KINDS)}"
    if not (0 <= start <= LONGEST_US and end <= LONGEST_US):
        return f"expected times from 0 to 100 years, found {start:g} to {end:g} us"
    if round(end) <= round(start):
        return f"expected an end after the start, found {end:g} after {start:g} us"
    if kind in MODELLED and not 1e-300 < value < 1e300:
        return f"expected a finite value above 0 for {kind!r}, found {value:g}"
    return None


def _check_apart(
    ids: Sequence[str],
    client: Ints,
    start_us: Ints,
    end_us: Ints,
    kinds: Sequence[str],
    place: Callable[[int], str],
) -> None:
    """Raise TraceError with each row that overlaps the one before it, by start, of its client and kind."""
    problems, kind = Problems(), np.array([KINDS.index(k) for k in kinds])
    order = np.lexsort((start_us, kind, client))
    before, after = order[:-1], order[1:]
    same = (client[before] == client[after]) & (kind[before] == kind[after])
    for i in np.flatnonzero(same & (start_us[after] < end_us[before])).tolist():
        other, row = int(before[i]), int(after[i])
        problems.add(
            f"{place(row)}, client {ids[client[row]][:80]!r}: {kinds[row]} from {start_us[row]} to {end_us[row]} us "
            f"overlaps {place(other)}, from {start_us[other]} to {end_us[other]} us"
        )
    problems.check()


def _check_described(name: str, ids: Sequence[str], client: Ints, kind: Any) -> None:
    """Raise TraceError with each client that is online but lacks a speed that others have."""
    problems, there = Problems(), np.unique(client[kind == "online"])
    for modelled in MODELLED:
        described = np.unique(client[kind == modelled])
        for one in np.setdiff1d(there, described).tolist() if len(described) else []:
            problems.add(
                f"{name}: client {ids[one][:80]!r} is online at times but has no {modelled!r} interval, while"
                f" {ids[int(described[0])][:80]!r} has one: describe {modelled!r} for every client or for none"
            )
    problems.check()


def _named(name: str, *columns: Any, **facts: Any) -> Trace:
    try:
        return Trace.of(*columns, **facts)
    except TraceError as error:
        raise TraceError(f"{name}: {error}") from None


def _numbered(clients: Sequence[str]) -> tuple[list[str], Ints]:
    number = {name: i for i, name in enumerate(dict.fromkeys(clients))}
    return list(number), np.array([number[c] for c in clients], np.int64)


def _absent(n: int, client: Ints, kind: Any) -> int:
    there = np.isin(kind, ["online", "unknown"])
    return n - len(np.unique(client[there]))


def _unknown(
    n: int, client: Ints, start_us: Ints, end_us: Ints, kind: Any, horizon_us: int, outside: str
) -> tuple[Ints, Ints, Ints]:
    """Return clients, starts and ends of which nothing is known: no word on presence at all, or none at that time."""
    told = np.isin(kind, ["online", "unknown"])
    first, last = np.full(n, horizon_us), np.zeros(n, np.int64)
    np.minimum.at(first, client[told], start_us[told])
    np.maximum.at(last, client[told], end_us[told])
    silent = np.flatnonzero(last == 0)
    heard = np.flatnonzero(last > 0) if outside == "unknown" else silent[:0]
    one = np.concatenate([silent, heard, heard])
    begin = np.concatenate([np.zeros(len(silent) + len(heard), np.int64), last[heard]])
    end = np.concatenate([np.full(len(silent), horizon_us), first[heard], np.full(len(heard), horizon_us)])
    some = begin < end
    return one[some], begin[some], end[some]

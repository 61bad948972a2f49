"""Worlds made of one world: some of its clients, some of its time, earlier or later, slower or faster.

Each function returns a new Trace, whose `source` (JSON) lists the edits and identifies the world they started from.
Times are exact: a client does at an instant what it did at the corresponding instant of the old world, also where its
intervals repeat with a period of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from fedsim.common import arguments
from fedsim.common.arrays import Ints
from fedsim.common.errors import TraceError
from fedsim.common.files import from_json
from fedsim.common.rng import rng
from fedsim.common.units import show_us
from fedsim.worlds.interval_arithmetic import (
    MOST_ROWS,
    cut,
    merged,
    of_rows,
    repeated,
    rotated,
    stretched,
    table_of,
    taken,
    times,
)
from fedsim.worlds.metadata import metadata_problems
from fedsim.worlds.trace import KINDS, AfterEnd, Spans, Trace
from fedsim.worlds.validation import listed

FINEST = 10**6
"""Largest denominator of the fraction that a factor on time is rounded to."""
MOST_LISTED = 100
"""Longest list of clients that is written into a trace's source; of a longer one only the length is."""


@arguments.checked
def select(trace: Trace, clients: Sequence[int] | Ints) -> Trace:
    """Return the world of `clients`, in that order; a client that is named twice becomes two clients.

    Raises TraceError if there are none or one does not exist.
    """
    ids = _checked_clients(trace, clients, "select")
    return _chosen(trace, ids, {"select": ids.tolist() if len(ids) <= MOST_LISTED else f"{len(ids)} clients"})


@arguments.checked
def resample(trace: Trace, n: int, replace: bool | None = None, seed: int = 0) -> Trace:
    """Return a world of `n` clients drawn uniformly, in order of their old numbers.

    `replace` says whether to draw with replacement; None does so only if the world has fewer than `n` clients. Raises
    TraceError if `n` is below 1, or above the number of clients without replacement, and for too many intervals.
    """
    intervals = n * len(trace.table) // trace.clients
    if max(n, intervals) > MOST_ROWS:
        raise TraceError(
            f"resample: expected at most {MOST_ROWS:,} clients and intervals, found {n:,} clients, which have about "
            f"{intervals:,} intervals"
        )
    ids = drawn(np.arange(trace.clients), n, replace, seed, "resample")
    step = {"resample": n, "replace": trace.clients < n if replace is None else replace, "seed": seed}
    return _chosen(trace, ids, step)


def drawn(among: Ints, n: int, replace: bool | None, seed: int, purpose: str) -> Ints:
    """Return `n` of the clients `among`, sorted; see `resample` for `replace` and errors."""
    with_replacement = n > len(among) if replace is None else replace
    if n < 1:
        raise TraceError(f"{purpose}: expected at least 1 client, found {n}")
    if n > len(among) and not with_replacement:
        raise TraceError(
            f"{purpose}: expected at most {len(among)} clients without replacement, found {n}; draw with replacement"
        )
    return np.sort(rng(seed, purpose).choice(among, size=n, replace=with_replacement))


@arguments.checked
def crop(trace: Trace, start_us: int, end_us: int) -> Trace:
    """Return the world of [start_us, end_us), moved to begin at 0.

    A client's own period stays, unless it is longer than the part; then its intervals are written out. Raises
    TraceError if the part is empty or not inside the horizon.
    """
    if not 0 <= start_us < end_us <= trace.horizon_us:
        raise TraceError(
            f"crop: expected a part of [0, {show_us(trace.horizon_us)}) with a length, "
            f"found [{show_us(start_us)}, {show_us(end_us)})"
        )
    length_us = end_us - start_us

    def change(kind: str, spans: Spans) -> Spans:
        period = trace.period_us(kind)
        loops = ((period > 0) & (period <= length_us))[spans.client]
        turned = rotated(of_rows(spans, loops), period, np.where(period > 0, -start_us, 0))
        rest = repeated(of_rows(spans, ~loops), period, end_us)
        return merged([turned, cut(rest, start_us, end_us)])

    periods = {kind: np.where(p <= length_us, p, 0) for kind, p in _periods(trace).items()}
    step, origin = {"crop": [start_us, end_us]}, _later(trace.origin, start_us)
    return _rebuilt(trace, change, step, horizon_us=length_us, periods=periods, origin=origin)


def _later(origin: str, time_us: int) -> str:
    """Return an ISO 8601 date and time later by `time_us`; "" if there is none."""
    return origin and (datetime.fromisoformat(origin) + timedelta(microseconds=time_us)).isoformat()


@arguments.checked
def shift(trace: Trace, by_us: int = 0, spread_us: int = 0, seed: int = 0) -> Trace:
    """Let everything happen `by_us` later (earlier if negative); what leaves a lap at one end enters at the other.

    With `spread_us`, each client's shift grows by its own uniform draw from [0, spread_us). Raises TraceError for a
    world that does not repeat, or a negative spread.
    """
    if trace.after_end != "repeat":
        raise TraceError(
            f"shift: expected a world that repeats, found after_end {trace.after_end!r};"
            " crop it, or set after_end first"
        )
    if spread_us < 0:
        raise TraceError(f"shift: expected a spread of at least 0, found {show_us(spread_us)}")
    own = rng(seed, "shift").integers(0, max(spread_us, 1), trace.clients)
    step = {"shift": by_us} | ({"spread": spread_us, "seed": seed} if spread_us else {})

    def change(kind: str, spans: Spans) -> Spans:
        laps = laps_us(trace, kind)
        return rotated(spans, laps, by_us % laps + own % laps)

    return _rebuilt(trace, change, step)


@arguments.checked
def scale(
    trace: Trace,
    time: float | str | Fraction = 1,
    compute: float = 1.0,
    downlink: float = 1.0,
    uplink: float = 1.0,
) -> Trace:
    """Stretch time (2: everything takes twice as long) and multiply values: seconds per sample, bytes per second.

    Times are rounded to whole microseconds, and intervals that become empty are left out. Raises TraceError for factors
    that are not finite and above 0, and for a world that becomes too long.
    """
    values = {"compute": compute, "downlink": downlink, "uplink": uplink}
    for name, factor in values.items():
        if not 0 < factor < float("inf"):
            raise TraceError(f"scale: expected a factor for {name} above 0, found {factor}")
    stretch = _fraction(time)
    horizon_us = max(int(trace.horizon_us * stretch + Fraction(1, 2)), 1)
    _check_horizon("scale", trace, horizon_us)

    def change(kind: str, spans: Spans) -> Spans:
        slower = stretched(spans, stretch)
        return replace(slower, value=slower.value * values.get(kind, 1.0))

    periods = {k: np.where(p > 0, np.maximum(times(p, stretch), 1), 0) for k, p in _periods(trace).items()}
    step = {"scale": {"time": str(stretch), **values}}
    return _rebuilt(trace, change, step, horizon_us=horizon_us, periods=periods)


@arguments.checked
def tile(trace: Trace, laps: int = 1) -> Trace:
    """Return the same world with `laps` horizons written out, in which no client has a period of its own.

    Raises TraceError for several laps of a world that does not repeat, and where the result has too many intervals.
    """
    if laps < 1 or (laps > 1 and trace.after_end != "repeat"):
        raise TraceError(
            "tile: expected 1 lap or more, and 1 unless the world repeats;"
            f" found {laps}, after_end {trace.after_end!r}"
        )
    end_us = laps * trace.horizon_us
    _check_horizon("tile", trace, end_us)

    def change(kind: str, spans: Spans) -> Spans:
        return repeated(spans, laps_us(trace, kind), end_us)

    return _rebuilt(trace, change, {"tile": laps}, horizon_us=end_us, periods={})


@arguments.checked
def kept_online(trace: Trace, clients: Sequence[int] | Ints, from_us: int, until_us: int = 0) -> Trace:
    """Return the world in which `clients` stay online, without faults, from `from_us` until the horizon.

    Nothing changes before `from_us`. A world that repeats gets a horizon of as many laps as it takes to reach
    `until_us`; everything else repeats on it as before. Raises TraceError for a client that does not exist.
    """
    ids = np.unique(_checked_clients(trace, clients, "keep_online"))
    chosen = np.isin(np.arange(trace.clients), ids)
    laps = max(-(-max(from_us + 1, until_us) // trace.horizon_us), 1) if trace.after_end == "repeat" else 1
    end_us = laps * trace.horizon_us
    start_us = min(from_us, end_us)

    def change(kind: str, spans: Spans) -> Spans:
        if kind not in ("online", "unknown", "fault"):
            return spans
        theirs = chosen[spans.client]
        parts = [of_rows(spans, ~theirs), repeated(of_rows(spans, theirs), laps_us(trace, kind), start_us)]
        if kind == "online" and start_us < end_us:
            always = np.full(len(ids), start_us), np.full(len(ids), end_us)
            parts.append(Spans(ids, *always, np.ones(len(ids))))
        return merged(parts)

    periods = {k: laps_us(trace, k) for k in KINDS if k != "unknown"} if laps > 1 else _periods(trace)
    written = {kind: np.where(chosen, 0, periods[kind]) for kind in ("online", "fault") if kind in periods}
    step = {"online": [ids.tolist(), from_us]}
    return _rebuilt(trace, change, step, horizon_us=end_us, periods=periods | written)


@arguments.checked
def ending(trace: Trace, after_end: AfterEnd) -> Trace:
    """Return the same world with another `after_end`."""
    return replace(trace, after_end=after_end, source=edited_source(trace, {"after_end": after_end}))


def laps_us(trace: Trace, kind: str) -> Ints:
    """Return [clients] after how long intervals of a kind begin again: the client's period, else the horizon."""
    period = trace.period_us(kind)
    return np.where(period > 0, period, trace.horizon_us)


def identity(trace: Trace) -> dict[str, Any]:
    """Return what identifies a world in the source of one that is made of it."""
    return {
        "digest": trace.digest(),
        "clients": trace.clients,
        "horizon_us": trace.horizon_us,
        "source": _parsed(trace.source),
    }


def edit_steps(trace: Trace) -> list[dict[str, Any]]:
    """Return the edits that made a world of another one, in order; none for a world that was not edited."""
    source = _parsed(trace.source)
    edits = source["edits"] if isinstance(source, dict) and set(source) == {"edits", "of"} else []
    return edits if isinstance(edits, list) else []


def edited_source(trace: Trace, step: Mapping[str, Any]) -> str:
    """Return the source of a world that one more edit makes of `trace`."""
    before = edit_steps(trace)
    base = _parsed(trace.source)["of"] if before else identity(trace)
    return source_text({"edits": [*before, dict(step)], "of": base})


def source_text(facts: Mapping[str, Any]) -> str:
    """Return facts as JSON for `Trace.source`; equal facts give equal texts."""
    return json.dumps(facts, sort_keys=True, default=str)


def _parsed(source: str) -> Any:
    """Return a source as the value of its JSON, or the text itself where it is free text."""
    try:
        return from_json(source)
    except ValueError:
        return source


def _chosen(trace: Trace, ids: Ints, step: Mapping[str, Any]) -> Trace:
    return _rebuilt(
        trace,
        lambda _, spans: taken(spans, ids),
        step,
        clients=len(ids),
        periods={kind: p[ids] for kind, p in _periods(trace).items()},
        about=trace.about.take(pa.array(ids)) if trace.about.num_columns else trace.about,
    )


def _rebuilt(
    trace: Trace, change: Callable[[str, Spans], Spans], step: Mapping[str, Any], **facts: Any
) -> Trace:
    table = table_of({kind: change(kind, trace.spans(kind)) for kind in KINDS})
    return replace(trace, table=table, source=edited_source(trace, step), **facts)


def _periods(trace: Trace) -> dict[str, Ints]:
    return {kind: np.asarray(p) for kind, p in trace.periods.items()}


def _check_horizon(edit: str, trace: Trace, horizon_us: int) -> None:
    if problems := metadata_problems(trace.clients, horizon_us, trace.after_end, trace.origin):
        raise TraceError(f"{edit}: {listed(problems)}")


def _checked_clients(trace: Trace, clients: Sequence[int] | Ints, purpose: str) -> Ints:
    ids = np.asarray(clients)  # without a dtype: a number beyond 64 bits is to be refused as no client
    foreign = ids[(ids < 0) | (ids >= trace.clients)]
    if len(foreign) or not len(ids):
        wrong = f"client {foreign[0]}" if len(foreign) else "none"
        raise TraceError(f"{purpose}: expected clients from 0 to {trace.clients - 1}, found {wrong}")
    return ids.astype(np.int64)


def _fraction(time: float | str | Fraction) -> Fraction:
    try:
        factor = Fraction(str(time)).limit_denominator(FINEST)
    except (ValueError, ZeroDivisionError):
        factor = Fraction(0)
    if factor <= 0:
        raise TraceError(f"scale: expected a factor for time of at least {1 / FINEST:g}, found {time}")
    return factor

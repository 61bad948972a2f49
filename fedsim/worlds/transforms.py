"""Worlds made of one world: some of its clients, some of its time, earlier or later, slower or faster.

Every function returns a new Trace that says in its `source` what was done to which world. Time is exact: a client does
at an instant what it did at the corresponding instant before, on laps of its own as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedsim.common import arguments
from fedsim.common.errors import TraceError
from fedsim.common.rng import rng
from fedsim.common.units import show_us
from fedsim.worlds.interval_arithmetic import (
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
from fedsim.worlds.provenance import edited
from fedsim.worlds.trace import KINDS, AfterEnd, Spans, Trace
from fedsim.worlds.validation import listed

Ints = NDArray[np.int64]

FINEST = 10**6
"""Factors on time are taken as fractions with a denominator up to this."""

MOST_LISTED = 100
"""Longer lists of clients are not written into a trace's source."""


@arguments.checked
def select(trace: Trace, clients: Sequence[int] | Ints) -> Trace:
    """Return a world of `clients`, in that order; one named twice is there twice. Raises TraceError for others."""
    ids = _known(trace, clients)
    return _chosen(trace, ids, {"select": ids.tolist() if len(ids) <= MOST_LISTED else f"{len(ids)} clients"})


@arguments.checked
def resample(trace: Trace, n: int, replace: bool | None = None, seed: int = 0) -> Trace:
    """Return a world of `n` clients drawn uniformly, in order of their old numbers.

    Without replacement, unless `replace` says so or is None and the world has fewer than `n`. Raises TraceError.
    """
    ids = drawn(np.arange(trace.clients), n, replace, seed, "resample")
    step = {"resample": n, "replace": trace.clients < n if replace is None else replace, "seed": seed}
    return _chosen(trace, ids, step)


def drawn(among: Ints, n: int, replace: bool | None, seed: int, purpose: str) -> Ints:
    """Draw `n` of the clients `among`, sorted; see `resample`. Raises TraceError if there are too few."""
    again = n > len(among) if replace is None else replace
    if n < 1:
        raise TraceError(f"{purpose}: expected at least 1 client, found {n}")
    if n > len(among) and not again:
        raise TraceError(
            f"{purpose}: expected at most {len(among)} clients without replacement, found {n}; draw with replacement"
        )
    return np.sort(rng(seed, purpose).choice(among, size=n, replace=again))


@arguments.checked
def crop(trace: Trace, start_us: int, end_us: int) -> Trace:
    """Return the world of [start_us, end_us), which begins at 0. What a client does on laps of its own goes on.

    A lap that is longer than what is left is written out instead. Raises TraceError if the part is empty or not
    inside the horizon.
    """
    if not 0 <= start_us < end_us <= trace.horizon_us:
        raise TraceError(
            f"crop: expected a part of [0, {show_us(trace.horizon_us)}) with a length, "
            f"found [{show_us(start_us)}, {show_us(end_us)})"
        )
    length = end_us - start_us
    goes_on = {kind: (p > 0) & (p <= length) for kind in KINDS if (p := trace.period_us(kind)).any()}

    def change(kind: str, spans: Spans) -> Spans:
        period = trace.period_us(kind)
        loops = goes_on.get(kind, np.zeros(trace.clients, bool))[spans.client]
        turned = rotated(of_rows(spans, loops), period, np.where(period > 0, -start_us, 0))
        rest = repeated(of_rows(spans, ~loops), period, end_us)
        return merged([turned, cut(rest, start_us, end_us)])

    return _rebuilt(
        trace,
        change,
        {"crop": [start_us, end_us]},
        horizon_us=length,
        periods={kind: np.where(goes_on[kind], p, 0) for kind, p in trace.periods.items()},
        origin=_moved(trace.origin, start_us),
    )


@arguments.checked
def shift(trace: Trace, by_us: int = 0, spread_us: int = 0, seed: int = 0) -> Trace:
    """Let everything happen `by_us` later (earlier if negative), round the lap of a repeating world.

    With `spread_us`, each client is moved by a further uniform draw from [0, spread_us) of its own. Raises TraceError
    for a world that does not repeat.
    """
    if trace.after_end != "repeat":
        raise TraceError(
            f"shift: expected a world that repeats, found after_end {trace.after_end!r};"
            " crop it, or set after_end first"
        )
    if spread_us < 0:
        raise TraceError(f"shift: expected a spread of at least 0, found {spread_us} us")
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

    Times are rounded to whole microseconds; what becomes empty is left out. Raises TraceError for factors that are not
    finite and above 0, and for worlds that become too long.
    """
    values = {"compute": compute, "downlink": downlink, "uplink": uplink}
    for name, factor in values.items():
        if not 0 < factor < float("inf"):
            raise TraceError(f"scale: expected a factor for {name} above 0, found {factor}")
    stretch = _stretch(time)
    horizon_us = max(_product(trace.horizon_us, stretch), 1)
    if problems := metadata_problems(trace.clients, horizon_us, trace.after_end, trace.origin):
        raise TraceError(f"scale: {listed(problems)}")

    def change(kind: str, spans: Spans) -> Spans:
        slower = stretched(spans, stretch)
        return replace(slower, value=slower.value * values.get(kind, 1.0))

    return _rebuilt(
        trace,
        change,
        {"scale": {"time": str(stretch), **values}},
        horizon_us=horizon_us,
        periods={k: np.where(p > 0, np.maximum(times(p, stretch), 1), 0) for k, p in _periods(trace).items()},
    )


@arguments.checked
def tile(trace: Trace, laps: int = 1) -> Trace:
    """Write loop periods out over `laps` horizons: the same world up to there, without periods of clients' own.

    Raises TraceError for several laps of a world that does not repeat, or where that would take too many intervals.
    """
    if laps < 1 or (laps > 1 and trace.after_end != "repeat"):
        raise TraceError(
            "tile: expected 1 lap or more, and 1 unless the world repeats;"
            f" found {laps}, after_end {trace.after_end!r}"
        )
    end_us = laps * trace.horizon_us
    if problems := metadata_problems(trace.clients, end_us, trace.after_end, trace.origin):
        raise TraceError(f"tile: {listed(problems)}")

    def change(kind: str, spans: Spans) -> Spans:
        return repeated(spans, laps_us(trace, kind), end_us)

    return _rebuilt(trace, change, {"tile": laps}, horizon_us=end_us, periods={})


@arguments.checked
def kept_online(trace: Trace, clients: Sequence[int] | Ints, from_us: int, until_us: int = 0) -> Trace:
    """Return the world in which these clients stay online, without faults, from a time until the horizon.

    Before that time nothing changes. A world that repeats gets a horizon of as many laps as `until_us` takes, on which
    everything else repeats as before. Raises TraceError for a client that is not there.
    """
    ids = np.unique(_known(trace, clients))
    of_them = np.isin(np.arange(trace.clients), ids)
    laps = max(-(-max(from_us + 1, until_us) // trace.horizon_us), 1) if trace.after_end == "repeat" else 1
    end_us = laps * trace.horizon_us
    start_us = min(from_us, end_us)

    def change(kind: str, spans: Spans) -> Spans:
        if kind not in ("online", "unknown", "fault"):
            return spans
        theirs = of_them[spans.client]
        before = repeated(of_rows(spans, theirs), laps_us(trace, kind), start_us)
        parts = [of_rows(spans, ~theirs), before]
        if kind == "online" and start_us < end_us:
            k = len(ids)
            parts.append(Spans(ids, np.full(k, start_us), np.full(k, end_us), np.ones(k)))
        return merged(parts)

    kinds = [kind for kind in KINDS if kind != "unknown"]
    periods = {k: laps_us(trace, k) for k in kinds} if laps > 1 else _periods(trace)
    written = {kind: np.where(of_them, 0, periods[kind]) for kind in ("online", "fault") if kind in periods}
    step = {"online": [ids.tolist(), from_us]}
    return _rebuilt(trace, change, step, horizon_us=end_us, periods=periods | written)


@arguments.checked
def ending(trace: Trace, after_end: AfterEnd) -> Trace:
    """Return the world with another thing to happen after its horizon."""
    return replace(trace, after_end=after_end, source=edited(trace, {"after_end": after_end}))


def laps_us(trace: Trace, kind: str) -> Ints:
    """Return [clients] after how long intervals of a kind begin again: the client's period, else the horizon."""
    period = trace.period_us(kind)
    return np.where(period > 0, period, trace.horizon_us)


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
    return replace(trace, table=table, source=edited(trace, step), **facts)


def _periods(trace: Trace) -> dict[str, Ints]:
    return {kind: np.asarray(p) for kind, p in trace.periods.items()}


def _known(trace: Trace, clients: Sequence[int] | Ints) -> Ints:
    ids = np.asarray(clients)  # of any size: a number beyond 64 bits is no client either
    foreign = ids[(ids < 0) | (ids >= trace.clients)]
    if len(foreign) or not len(ids):
        found = f"client {foreign[0]}" if len(foreign) else "none"
        raise TraceError(f"select: expected clients from 0 to {trace.clients - 1}, found {found}")
    return ids.astype(np.int64)


def _stretch(time: float | str | Fraction) -> Fraction:
    try:
        found = Fraction(str(time)).limit_denominator(FINEST)
    except (ValueError, ZeroDivisionError):
        found = Fraction(0)
    if found <= 0:
        raise TraceError(f"scale: expected a factor for time of at least {1 / FINEST:g}, found {time}")
    return found


def _product(time_us: int, factor: Fraction) -> int:
    return int(time_us * factor + Fraction(1, 2))


def _moved(origin: str, by_us: int) -> str:
    """Return the date of a later instant."""
    if not origin:
        return origin
    return (datetime.fromisoformat(origin) + timedelta(microseconds=by_us)).isoformat()

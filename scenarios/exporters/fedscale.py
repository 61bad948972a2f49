"""FedScale's `client_behave_trace`: a pickle of the windows in which each client is online, as `fedscale_availability`.

Times are seconds, whole where they can be. Windows have both ends, so [a, b) ends at b - 1 us; `duration` is the sum of
their lengths, whatever a fact says. `finish_time` is the client's period, else the horizon.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedsim.common.units import DAY_US, US, show_us
from fedsim.scenarios.exporters.exported import Exported, count, facts_left_out, ids, kinds_left_out
from fedsim.worlds.trace import Spans, Trace

_FACTS = ("id", "model", "duration_s")


def fedscale(trace: Trace) -> Exported:
    """Return the times online of a world as FedScale's availability."""
    online, unknown = trace.spans("online"), trace.spans("unknown")
    open_end = _open_ends(trace, online, unknown)
    first = np.searchsorted(online.client, np.arange(trace.clients + 1))
    periods = np.where(trace.period_us("online") > 0, trace.period_us("online"), trace.horizon_us)
    models = _fact(trace, "model")
    clients = {}
    for client, name in enumerate(ids(trace)):
        start, end = (t[first[client] : first[client + 1]] for t in (online.start_us, online.end_us))
        clients[int(name) if name.isdecimal() and str(int(name)) == name else name] = {
            "model": models[client],
            "duration": _seconds(int((end - 1 - start).sum())),
            "active": [_seconds(t) for t in start.tolist()],
            "inactive": [_seconds(t - 1) for t in end.tolist()],
            "finish_time": None if open_end[client] else _seconds(int(periods[client])),
        }
    days = -(-int(online.end_us[open_end[online.client]].max(initial=0)) // DAY_US)
    read_us = max(int(periods[~open_end].max(initial=0)), days * DAY_US)
    return Exported(pickle.dumps(clients, protocol=4), list(_left_out(trace, unknown, open_end, read_us)))


def _seconds(time_us: int) -> int | float:
    return time_us / US if time_us % US else time_us // US


def _fact(trace: Trace, name: str) -> list[Any]:
    present = name in trace.about.column_names
    return trace.about.column(name).to_pylist() if present else [None] * trace.clients


def _open_ends(
    trace: Trace, online: Spans, unknown: Spans
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return [clients] whether nothing is known of a client after its last window, as without a `finish_time`."""
    last = np.zeros(trace.clients, np.int64)
    np.maximum.at(last, online.client, online.end_us)
    to_end = (unknown.start_us == last[unknown.client]) & (unknown.end_us == trace.horizon_us)
    found = np.zeros(trace.clients, dtype=bool)
    found[unknown.client[to_end]] = True
    return np.asarray(found & (trace.period_us("online") == 0))


def _left_out(
    trace: Trace, unknown: Spans, open_end: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], read_us: int
) -> Iterator[str]:
    """Yield what an import, which finds the horizon `read_us`, does not return."""
    yield from kinds_left_out(trace, ["online", "unknown"])
    hidden = len(unknown.client) - int(open_end.sum())
    yield from count(np.ones(hidden, dtype=bool), "unknown intervals, which become offline")
    if trace.clients and read_us != trace.horizon_us:
        yield f"the horizon: {show_us(trace.horizon_us)}, which becomes {show_us(read_us)}, whole days of open ends"
    if trace.after_end != "repeat":
        yield f"the end of the world: {trace.after_end}; in FedScale clients begin again"
    yield from facts_left_out(trace, _FACTS)

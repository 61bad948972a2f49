"""Pings of 15 s, from which FLGo's phone simulator takes who is online, as the importer `flgo_pings` reads them.

A client has a ping at the start of each interval and every 15 s in it, and one 15 s before its end. `merge=true` joins
them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from fedsim.common.errors import TraceError
from fedsim.common.units import US
from fedsim.scenarios.exporters.exported import Exported, count, facts_left_out, ids, kinds_left_out
from fedsim.worlds.trace import Spans, Trace
from fedsim.worlds.transforms import tile

STEP_S = 15


def flgo(trace: Trace) -> Exported:
    """Return the times online of a world as pings; time 0 is the date of the world, or 1970."""
    online = (tile(trace, 1) if trace.periods else trace).spans("online").joined()
    if not len(online.client):
        raise TraceError("expected a client that is online at some time: a table of pings needs one")
    names, zero_s, lines = ids(trace), _epoch_s(trace.origin), ["id,timestamp"]
    start_s, end_s = (np.rint(t / US).astype(np.int64) for t in (online.start_us, online.end_us))
    for client, start, end in zip(online.client.tolist(), start_s.tolist(), end_s.tolist(), strict=True):
        times = {*range(start, max(end - STEP_S, start) + 1, STEP_S), max(end - STEP_S, start)}
        lines += [f"{_cell(names[client])},{zero_s + at}" for at in sorted(times)]
    data = "\n".join([*lines, ""]).encode()
    return Exported(data, list(_left_out(trace, online)), ("merge=true", f"after_end={trace.after_end}"))


def _epoch_s(origin: str) -> int:
    if not origin:
        return 0
    date = datetime.fromisoformat(origin)
    return max(0, round((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()))


def _cell(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"') else name


def _left_out(trace: Trace, online: Spans) -> Iterator[str]:
    yield from kinds_left_out(trace, ["online"])
    n_online = len(np.unique(online.client))
    yield from count(np.arange(trace.clients) >= n_online, "clients that are never online")
    parts = online.start_us % US + online.end_us % US
    yield from count(parts > 0, "intervals with parts of a second: rounded")
    yield from count(
        online.end_us - online.start_us < STEP_S * US, "intervals shorter than 15 s: a ping lasts as long"
    )
    first_us, last_us = int(online.start_us.min()), int(online.end_us.max())
    if first_us > 0 or last_us < trace.horizon_us:
        yield "the time before the first and after the last ping of all"
    ends_us = np.maximum(online.end_us, online.start_us + STEP_S * US)
    if int(ends_us.max()) > trace.horizon_us:
        yield f"the length of the world: the last ping, which counts for {STEP_S} s, goes beyond it"
    if not trace.origin:
        yield "that the world has no date: pings begin in 1970"
    periods = trace.period_us("online")
    yield from count(periods > 0, "periods of online: written out up to the horizon instead")
    yield "what clients do before their first and after their last ping: it is unknown"
    yield from facts_left_out(trace, origin=first_us > 0)

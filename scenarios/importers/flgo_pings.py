"""Pings of app users, from which FLGo's phone simulator takes who is online (AparGarg99/App_Usage_Prediction).

A CSV file with a header `id,timestamp` (other columns and remarks are ignored): a line says that client `id` was online
during the 15 s that start at `timestamp`, in Unix epoch seconds.

Time 0 is the earliest ping. A client is online for the 15 s of each of its pings, cut short where its next ping
overlaps them. Between its first and its last ping it is offline otherwise; before and after, it is unknown. Lines may
be in any order; a ping that repeats counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import numpy as np

from fedsim.common.arrays import Ints
from fedsim.common.errors import TraceError
from fedsim.common.units import US
from fedsim.scenarios.importers.reading.files import (
    LONGEST_S,
    Problems,
    Windows,
    about,
    availability,
    columns,
    whole,
)
from fedsim.scenarios.importers.reading.series import head, labels, noted
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import AfterEnd

STEP_S = 15


def flgo_pings(*, merge: bool = False, after_end: AfterEnd = "repeat") -> Importer:
    """Pings of app users in steps of 15 s (FLGo): online while there is a ping.

    Args:
        merge: join steps that touch into one interval.
        after_end: what follows the last ping. "repeat": the world begins again. "stop": everybody is offline. "error":
            questions about later times are refused.
    """
    return Importer(
        recognises=_recognises,
        read=partial(_read, merge=merge, after_end=after_end),
        licence="none stated",
        units="Unix epoch seconds (UTC) to microseconds from the earliest ping; a ping is 15 s",
    )


def _read(sources: Sequence[Source], merge: bool, after_end: AfterEnd) -> Imported:
    labels(sources)
    ids, clients, times = _pings(sources)
    client, at_s = np.unique(np.array([clients, times], np.int64), axis=1)
    origin_s = int(at_s.min())
    at_s = at_s - origin_s
    first, last = np.full(len(ids), at_s.max()), np.zeros(len(ids), np.int64)
    np.minimum.at(first, client, at_s)
    np.maximum.at(last, client, at_s + STEP_S)
    start, end, client = _intervals(client, at_s, merge)
    trace = availability(
        Windows(client, start * US, end * US, known=(first * US, last * US)),
        about(ids),
        horizon_us=int(last.max()) * US,
        origin=datetime.fromtimestamp(origin_s, UTC).isoformat(),
        after_end=after_end,
    )
    return Imported(trace, noted({"pings": len(times), "pings_that_repeat": len(times) - len(at_s)}))


def _recognises(source: Source) -> bool:
    return next(iter(head(source, 1)), "").split(",")[:2] == ["id", "timestamp"]


def _pings(sources: Sequence[Source]) -> tuple[list[str], list[int], list[int]]:
    """Return the clients' ids, and the client's number and the time in seconds of each ping."""
    problems, numbers, clients, times = Problems(), dict[str, int](), list[int](), list[int]()
    for source in sources:
        lines, (ids, stamps) = columns(source, ["id", "timestamp"])
        for line, key, stamp in zip(lines, ids, stamps, strict=True):
            place = f"{source.name}, line {line}"
            with problems.caught():
                if not key:
                    raise TraceError(f"{place}, id: expected a client id, found an empty cell")
                time_s = whole(stamp, f"{place}, timestamp", 0, 2 * LONGEST_S)
                clients.append(numbers.setdefault(key, len(numbers)))
                times.append(time_s)
    problems.check()
    if not times:
        raise TraceError(f"{sources[0].name}: expected lines of id and timestamp, found none")
    return list(numbers), clients, times


def _intervals(client: Ints, at_s: Ints, merge: bool) -> tuple[Ints, Ints, Ints]:
    """Return start, end and client of the intervals that pings, in order of client and time, cover."""
    follows = client[1:] == client[:-1]
    if merge:
        touches = follows & (at_s[1:] <= at_s[:-1] + STEP_S)
        opens, closes = np.append(True, ~touches), np.append(~touches, True)
        return at_s[opens], at_s[closes] + STEP_S, client[opens]
    end = at_s + STEP_S
    end[:-1] = np.where(follows, np.minimum(end[:-1], at_s[1:]), end[:-1])
    return at_s, end, client

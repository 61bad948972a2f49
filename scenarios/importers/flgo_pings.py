"""Pings of app users, from which FLGo's phone simulator takes who is online (AparGarg99/App_Usage_Prediction).

A CSV file with a header `id,timestamp` (further columns and remarks in it are passed over): a line says that client
`id` was online during the 15 s that start at `timestamp`, in Unix epoch seconds.

Time 0 is the earliest ping. A client is online in the steps that it has a ping for; a step that the next one overlaps
is cut short at that one's start. Between its first and its last step it is offline otherwise; before and after it is
unknown. Lines in any order; a ping that repeats counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from fedsim.common.errors import TraceError
from fedsim.common.units import US
from fedsim.scenarios.importers.reading.files import LONGEST_S, Problems, availability, columns, whole
from fedsim.scenarios.importers.reading.series import Ints, head, labels, told
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import AfterEnd

STEP_S = 15


def flgo_pings(*, merge: bool = False, after_end: AfterEnd = "repeat") -> Importer:
    """Pings of app users in steps of 15 s (FLGo): online while there is a ping.

    `merge` makes steps that touch one interval. `after_end` is what the world does after the last ping.
    """

    def read(sources: Sequence[Source]) -> Imported:
        labels(sources)
        ids, who, times = _pings(sources)
        client, at_s = np.unique(np.array([who, times], np.int64), axis=1)
        origin_s = int(at_s.min())
        at_s = at_s - origin_s
        first, last = np.full(len(ids), at_s.max()), np.zeros(len(ids), np.int64)
        np.minimum.at(first, client, at_s)
        np.maximum.at(last, client, at_s + STEP_S)
        start, end, client = _intervals(client, at_s, merge)
        trace = availability(
            ids,
            client,
            start * US,
            end * US,
            horizon_us=int(last.max()) * US,
            known=(first * US, last * US),
            origin=datetime.fromtimestamp(origin_s, UTC).isoformat(),
            after_end=after_end,
        )
        return Imported(trace, told({"pings": len(times), "pings_that_repeat": len(times) - len(at_s)}))

    return Importer(
        recognises=_recognises,
        read=read,
        licence="none stated",
        units="Unix epoch seconds (UTC) to microseconds from the earliest ping; a ping is 15 s",
    )


def _recognises(source: Source) -> bool:
    return next(iter(head(source, 1)), "").split(",")[:2] == ["id", "timestamp"]


def _pings(sources: Sequence[Source]) -> tuple[list[str], list[int], list[int]]:
    """Return the clients' ids, and of each ping the client's number and the time in seconds."""
    problems, numbers, who, times = Problems(), dict[str, int](), list[int](), list[int]()
    for source in sources:
        lines, (ids, stamps) = columns(source, ["id", "timestamp"])
        for line, key, stamp in zip(lines, ids, stamps, strict=True):
            place = f"{source.name}, line {line}"
            with problems.caught():
                if not key:
                    raise TraceError(f"{place}, id: expected a client id, found an empty cell")
                time_s = whole(stamp, f"{place}, timestamp", 0, 2 * LONGEST_S)
                who.append(numbers.setdefault(key, len(numbers)))
                times.append(time_s)
    problems.check()
    if not times:
        raise TraceError(f"{sources[0].name}: expected lines of id and timestamp, found none")
    return list(numbers), who, times


def _intervals(client: Ints, at_s: Ints, merge: bool) -> tuple[Ints, Ints, Ints]:
    """Return start, end and client of what pings cover; they are in order of client and time."""
    follows = client[1:] == client[:-1]
    if merge:
        goes_on = follows & (at_s[1:] <= at_s[:-1] + STEP_S)
        opens, closes = np.append(True, ~goes_on), np.append(~goes_on, True)
        return at_s[opens], at_s[closes] + STEP_S, client[opens]
    end = at_s + STEP_S
    end[:-1] = np.where(follows, np.minimum(end[:-1], at_s[1:]), end[:-1])
    return at_s, end, client

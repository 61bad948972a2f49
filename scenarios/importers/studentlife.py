"""Phone sensors of students: charging, locked, in the dark (StudentLife study, Dartmouth 2013; frycast/studentlife).

Files `<sensor>/<sensor>_<user>.csv`, sensor such as `phonecharge` (plugged in), `phonelock` (screen locked) or
`dark`, with columns `start,end`: closed intervals [start, end] in whole Unix epoch seconds, UTC.

A user is a client, online while all sensors of `ready` hold: both ends count, so [a, b] becomes [a, b + 1 us), cut
short where the next begins. Time 0 is the earliest time of a chosen sensor. A user is unknown outside the time that
all its chosen sensors cover, from the latest of their first starts to the earliest of their last ends, and throughout
if one of them is missing. Lines are put in order; a line that repeats counts once; lines that overlap are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise

import numpy as np

from fedsim.common.arrays import Ints
from fedsim.common.errors import ConfigError, TraceError, closest
from fedsim.common.units import US
from fedsim.scenarios.importers.reading.files import (
    LONGEST_S,
    Problems,
    Windows,
    about,
    availability,
    closed,
    columns,
    whole,
)
from fedsim.scenarios.importers.reading.series import head, labels, noted
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import AfterEnd

USUAL = ("phonecharge", "phonelock")
_NAME = re.compile(r"([A-Za-z]\w*)_([A-Za-z0-9]+)\.csv")

Intervals = tuple[Ints, Ints]
"""Starts and ends of half-open intervals, in order."""


def studentlife(*, ready: list[str] | str | None = None, after_end: AfterEnd = "repeat") -> Importer:
    """Charging and locked phones of students (StudentLife): one user is one client.

    Args:
        ready: sensors that must all hold, as a list or a text with commas; None: `phonecharge` and `phonelock`, or the
            only sensor of the files.
        after_end: what follows the last time covered. "repeat": the world begins again. "stop": everybody is offline.
            "error": questions about later times are refused.
    """
    chosen = [s.strip() for s in ready.split(",")] if isinstance(ready, str) else ready
    if chosen is not None and (not chosen or not all(chosen) or len(set(chosen)) < len(chosen)):
        raise ConfigError(
            f"importer 'studentlife', option 'ready': expected different sensors, found {ready!r}"
        )

    return Importer(
        recognises=_recognises,
        read=partial(_read, ready=chosen, after_end=after_end),
        licence="GPL-3 for the package; the study's data are released for research",
        units="Unix epoch seconds (UTC) to microseconds from the earliest; [a, b] with both ends becomes [a, b + 1 us)",
    )


def _read(sources: Sequence[Source], ready: list[str] | None, after_end: AfterEnd) -> Imported:
    labels(sources)
    problems, counts = Problems(), Counter[str]()
    users: dict[str, dict[str, Intervals]] = {}
    for source in sources:
        with problems.caught():
            sensor, user = _sensor_and_user(source)
            if sensor in users.setdefault(user, {}):
                raise TraceError(f"{source.name}: expected one {sensor} file of user {user!r}, found two")
            users[user][sensor] = _intervals(source, counts)
    problems.check()
    return _imported(users, _sensors(users, ready, sources[0]), counts, after_end)


def _recognises(source: Source) -> bool:
    named = _NAME.fullmatch(source.path.name) is not None
    return named and [cell.strip() for cell in next(iter(head(source, 1)), "").split(",")] == ["start", "end"]


def _sensor_and_user(source: Source) -> tuple[str, str]:
    match = _NAME.fullmatch(source.path.name)
    if match is None:
        raise TraceError(
            f"{source.name}: expected a name like phonecharge_u00.csv, sensor and user, found {source.path.name!r}"
        )
    return match[1], match[2]


def _sensors(
    users: Mapping[str, Mapping[str, Intervals]], ready: list[str] | None, first: Source
) -> list[str]:
    present = sorted({sensor for sensors in users.values() for sensor in sensors})
    wanted = ready or (present if len(present) == 1 else list(USUAL))
    lacking = [sensor for sensor in wanted if sensor not in present]
    if lacking:
        raise TraceError(
            f"{first.name} and others: expected files of sensor {lacking[0]!r}, found {', '.join(present)}"
            f"{closest(lacking[0], present)}; name the sensors that must say yes with ready = [...]"
        )
    return wanted


def _intervals(source: Source, counts: Counter[str]) -> Intervals:
    lines, (starts, ends) = columns(source, ["start", "end"])
    problems, closed_intervals = Problems(), list[tuple[int, int, int]]()
    for line, start, end in zip(lines, starts, ends, strict=True):
        place = f"{source.name}, line {line}"
        with problems.caught():
            a, b = (whole(t, f"{place}, {n}", 0, 2 * LONGEST_S) for t, n in ((start, "start"), (end, "end")))
            if b < a:
                raise TraceError(f"{place}: expected an end of at least start {a}, found {b}")
            closed_intervals.append((a, b, line))
    problems.check()
    if not closed_intervals:
        raise TraceError(f"{source.name}: expected lines of start and end, found none")
    return _in_order(closed_intervals, source, counts)


def _in_order(rows: list[tuple[int, int, int]], source: Source, counts: Counter[str]) -> Intervals:
    """Return rows of start, end and line in order. Raises TraceError for rows that overlap."""
    counts["lines"] += len(rows)
    counts["times_that_decrease"] += sum(b[0] < a[0] for a, b in pairwise(rows))
    ordered = sorted({(a, b): line for a, b, line in rows}.items())
    counts["lines_that_repeat"] += len(rows) - len(ordered)
    problems = Problems()
    for ((a, b), line), ((c, d), other) in pairwise(ordered):
        if c < b:
            problems.add(f"{source.name}, line {other}: [{c}, {d}] overlaps line {line}, [{a}, {b}]")
    problems.check()
    start_us, end_us = np.array([window for window, _ in ordered], np.int64).T * US
    return closed(np.zeros(len(ordered), np.int64), start_us, end_us)


def _imported(
    users: Mapping[str, Mapping[str, Intervals]],
    sensors: Sequence[str],
    counts: Counter[str],
    after_end: AfterEnd,
) -> Imported:
    used = {user: [of_user[s] for s in sensors if s in of_user] for user, of_user in users.items()}
    zero_us = min(int(start[0]) for sets in used.values() for start, _ in sets)
    horizon_us = max(int(end[-1]) for sets in used.values() for _, end in sets) - zero_us
    complete = {user: _intersection(sets) for user, sets in used.items() if len(sets) == len(sensors)}
    counts["users_that_lack_a_sensor"] = len(users) - len(complete)
    empty = np.zeros(0, np.int64)
    online = [complete.get(user, (empty, empty)) for user in users]
    known = [_covered(used[user]) if user in complete else (zero_us, zero_us) for user in users]
    windows = Windows(
        np.repeat(np.arange(len(users)), [len(start) for start, _ in online]),
        np.concatenate([start for start, _ in online]) - zero_us,
        np.concatenate([end for _, end in online]) - zero_us,
        known=(np.array([a for a, _ in known]) - zero_us, np.array([b for _, b in known]) - zero_us),
    )
    origin = datetime.fromtimestamp(zero_us // US, UTC).isoformat()
    clients = about(list(users))
    trace = availability(windows, clients, horizon_us=horizon_us, origin=origin, after_end=after_end)
    return Imported(trace, noted(counts, ready=list(sensors)))


def _covered(sets: Sequence[Intervals]) -> tuple[int, int]:
    """Return the time that all sensors cover, empty if there is none."""
    first = max(int(start[0]) for start, _ in sets)
    return first, max(first, min(int(end[-1]) for _, end in sets))


def _intersection(sets: Sequence[Intervals]) -> Intervals:
    """Return the intersection of several sets of intervals; those of a set are disjoint and in order."""
    edges = np.concatenate([edge for start, end in sets for edge in (start, end)])
    step = np.concatenate([np.full(len(start), sign) for start, _ in sets for sign in (1, -1)])
    order = np.lexsort((step, edges))  # at equal times ends come first, so intervals that touch do not meet
    level = np.cumsum(step[order])
    opens = np.flatnonzero((level == len(sets)) & (step[order] == 1))
    return edges[order][opens], edges[order][opens + 1]

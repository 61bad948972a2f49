"""Phone sensors of students: charging, locked, in the dark (StudentLife study, Dartmouth 2013; frycast/studentlife).

Files `<sensor>/<sensor>_<user>.csv`, sensor such as `phonecharge` (plugged in), `phonelock` (screen locked) or
`dark`, with columns `start,end`: closed intervals [start, end] in whole Unix epoch seconds, UTC.

A user is a client, online while all sensors of `ready` say yes: both ends count, so [a, b] becomes [a, b + 1 us), cut
short where the next begins. Time 0 is the earliest time of a chosen sensor. A user is unknown outside the time that
all its chosen sensors cover, from the latest of their first starts to the earliest of their last ends, and altogether
if one of them is lacking. Lines are put in order; a line that repeats counts once; lines that overlap are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np

from fedsim.common.errors import ConfigError, TraceError, closest
from fedsim.common.units import US
from fedsim.scenarios.importers.reading.files import LONGEST_S, Problems, availability, closed, columns, whole
from fedsim.scenarios.importers.reading.series import Ints, head, labels, told
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import AfterEnd

USUAL = ("phonecharge", "phonelock")
_NAME = re.compile(r"([A-Za-z]\w*)_([A-Za-z0-9]+)\.csv")

Windows = tuple[Ints, Ints]
"""Starts and ends of half-open intervals, in order."""


def studentlife(*, ready: list[str] | str | None = None, after_end: AfterEnd = "repeat") -> Importer:
    """Charging and locked phones of students (StudentLife): one user is one client.

    `ready` names the sensors that must all say yes, as a list or a text with commas; by default `phonecharge` and
    `phonelock`, or the only one where the files hold a single sensor. `after_end` is what the world does after the
    last time that is covered.
    """
    chosen = [s.strip() for s in ready.split(",")] if isinstance(ready, str) else ready
    if chosen is not None and (not chosen or not all(chosen) or len(set(chosen)) < len(chosen)):
        raise ConfigError(
            f"importer 'studentlife', option 'ready': expected different sensors, found {ready!r}"
        )

    def read(sources: Sequence[Source]) -> Imported:
        labels(sources)
        problems, counts = Problems(), Counter[str]()
        users: dict[str, dict[str, Windows]] = {}
        for source in sources:
            with problems.caught():
                sensor, user = _named(source)
                if sensor in users.setdefault(user, {}):
                    raise TraceError(f"{source.name}: expected one {sensor} file of user {user!r}, found two")
                users[user][sensor] = _windows(source, counts)
        problems.check()
        return _imported(users, _sensors(users, chosen, sources[0]), counts, after_end)

    return Importer(
        recognises=_recognises,
        read=read,
        licence="GPL-3 for the package; the study's data are released for research",
        units="Unix epoch seconds (UTC) to microseconds from the earliest; [a, b] with both ends becomes [a, b + 1 us)",
    )


def _recognises(source: Source) -> bool:
    named = _NAME.fullmatch(source.path.name) is not None
    return named and [cell.strip() for cell in next(iter(head(source, 1)), "").split(",")] == ["start", "end"]


def _named(source: Source) -> tuple[str, str]:
    match = _NAME.fullmatch(source.path.name)
    if match is None:
        raise TraceError(
            f"{source.name}: expected a name like phonecharge_u00.csv, sensor and user, found {source.path.name!r}"
        )
    return match[1], match[2]


def _sensors(
    users: Mapping[str, Mapping[str, Windows]], chosen: list[str] | None, first: Source
) -> list[str]:
    held = sorted({sensor for sensors in users.values() for sensor in sensors})
    wanted = chosen or (held if len(held) == 1 else list(USUAL))
    lacking = [sensor for sensor in wanted if sensor not in held]
    if lacking:
        raise TraceError(
            f"{first.name} and others: expected files of sensor {lacking[0]!r}, found {', '.join(held)}"
            f"{closest(lacking[0], held)}; name the sensors that must say yes with ready = [...]"
        )
    return wanted


def _windows(source: Source, counts: Counter[str]) -> Windows:
    lines, (starts, ends) = columns(source, ["start", "end"])
    problems, found = Problems(), list[tuple[int, int, int]]()
    for line, start, end in zip(lines, starts, ends, strict=True):
        place = f"{source.name}, line {line}"
        with problems.caught():
            a, b = (whole(t, f"{place}, {n}", 0, 2 * LONGEST_S) for t, n in ((start, "start"), (end, "end")))
            if b < a:
                raise TraceError(f"{place}: expected an end of at least start {a}, found {b}")
            found.append((a, b, line))
    problems.check()
    if not found:
        raise TraceError(f"{source.name}: expected lines of start and end, found none")
    return _in_order(found, source, counts)


def _in_order(found: list[tuple[int, int, int]], source: Source, counts: Counter[str]) -> Windows:
    counts["lines"] += len(found)
    counts["times_that_decrease"] += sum(b[0] < a[0] for a, b in pairwise(found))
    ordered = sorted({(a, b): line for a, b, line in found}.items())
    counts["lines_that_repeat"] += len(found) - len(ordered)
    problems = Problems()
    for ((a, b), line), ((c, d), other) in pairwise(ordered):
        if c < b:
            problems.add(f"{source.name}, line {other}: [{c}, {d}] overlaps line {line}, [{a}, {b}]")
    problems.check()
    start_us, end_us = np.array([window for window, _ in ordered], np.int64).T * US
    return closed(np.zeros(len(ordered), np.int64), start_us, end_us)


def _imported(
    users: Mapping[str, Mapping[str, Windows]],
    sensors: Sequence[str],
    counts: Counter[str],
    after_end: AfterEnd,
) -> Imported:
    used = {user: [has[s] for s in sensors if s in has] for user, has in users.items()}
    zero_us = min(int(start[0]) for windows in used.values() for start, _ in windows)
    horizon_us = max(int(end[-1]) for windows in used.values() for _, end in windows) - zero_us
    both = {user: _all(windows) for user, windows in used.items() if len(windows) == len(sensors)}
    counts["users_that_lack_a_sensor"] = len(users) - len(both)
    empty = np.zeros(0, np.int64)
    online = [both.get(user, (empty, empty)) for user in users]
    known = [_covered(used[user]) if user in both else (zero_us, zero_us) for user in users]
    trace = availability(
        list(users),
        np.repeat(np.arange(len(users)), [len(start) for start, _ in online]),
        np.concatenate([start for start, _ in online]) - zero_us,
        np.concatenate([end for _, end in online]) - zero_us,
        horizon_us=horizon_us,
        known=(np.array([a for a, _ in known]) - zero_us, np.array([b for _, b in known]) - zero_us),
        origin=datetime.fromtimestamp(zero_us // US, UTC).isoformat(),
        after_end=after_end,
    )
    return Imported(trace, told(counts, ready=list(sensors)))


def _covered(windows: Sequence[Windows]) -> tuple[int, int]:
    """Return from when to when all sensors tell something; nothing where they do not meet."""
    first = max(int(start[0]) for start, _ in windows)
    return first, max(first, min(int(end[-1]) for _, end in windows))


def _all(windows: Sequence[Windows]) -> Windows:
    """Return where all of several sets of intervals hold; within a set intervals are disjoint and in order."""
    edges = np.concatenate([edge for start, end in windows for edge in (start, end)])
    step = np.concatenate(
        [np.full(len(edge), d) for start, _ in windows for edge, d in ((start, 1), (start, -1))]
    )
    order = np.lexsort(
        (step, edges)
    )  # at one instant ends come before starts, so that touching is not meeting
    level = np.cumsum(step[order])
    opens = np.flatnonzero((level == len(windows)) & (step[order] == 1))
    return edges[order][opens], edges[order][opens + 1]

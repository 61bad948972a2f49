"""Hours a day that app users were online: the daily table beside FLGo's pings (AparGarg99/App_Usage_Prediction).

A CSV file with the columns `id`, `date` (DD/MM/YY, of this century) and `online_hours` (0 to 24), one line a user and
day.

A user is a client, and time 0 is midnight before the earliest date. When in the day a user was online is not known:
by default a client is `unknown` throughout, and the hours of each day are kept as facts `hours_YYYY_MM_DD`. With
`place`, one window of that length is placed in each day; a day without a line is unknown. Where an (id, date)
repeats, `repeated` says which hours count; how many do, and how many of them differ, is noted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from typing import Any, Literal

import numpy as np

from fedsim.common.errors import TraceError
from fedsim.common.rng import rng
from fedsim.common.units import US
from fedsim.scenarios.importers.reading.files import DAY_US, Problems, about, columns, missing, number, shown
from fedsim.scenarios.importers.reading.series import head, labels, told
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import AfterEnd, Trace

Place = Literal["unknown", "random", "evening"]
Repeated = Literal["mean", "first", "last", "max"]

HOUR_US = 3600 * US
EVENING_H = 20.0
"""The hour around which `place = "evening"` lays windows, as far as the day allows."""
MOST_DAYS = 366
_DATE = re.compile(r"(\d{1,2})/(\d{1,2})/(\d\d)")
_CHOICE: dict[Repeated, Callable[[list[float]], float]] = {
    "mean": lambda hours: sum(hours) / len(hours),
    "first": lambda hours: hours[0],
    "last": lambda hours: hours[-1],
    "max": max,
}


def flgo_usage(
    *,
    place: Place = "unknown",
    seed: int = 0,
    repeated: Repeated = "mean",
    after_end: AfterEnd = "repeat",
) -> Importer:
    """Hours a day that app users were online (FLGo): one user is one client.

    `place` lays each day's hours as one window: `random` at a start drawn from `seed`, id and date, `evening` around
    20:00. `repeated` says which hours of an (id, date) that repeats count. `after_end` is what the world does after
    the last date.
    """

    def read(sources: Sequence[Source]) -> Imported:
        labels(sources)
        users, notes = _hours(sources, repeated)
        days = sorted({day for hours in users.values() for day in hours})
        if days[-1] - days[0] >= MOST_DAYS:
            raise TraceError(
                f"{sources[0].name}: expected dates within {MOST_DAYS} days, found {date.fromordinal(days[0])} to"
                f" {date.fromordinal(days[-1])}"
            )
        trace = _trace(users, days, place, seed, after_end)
        return Imported(trace, told(notes, place=place))

    return Importer(
        recognises=_recognises,
        read=read,
        licence="none stated",
        units="hours x 3.6e9 = microseconds; dates as written, without a time zone",
    )


def _recognises(source: Source) -> bool:
    return next(iter(head(source, 1)), "").split(",")[:3] == ["id", "date", "online_hours"]


def _hours(
    sources: Sequence[Source], repeated: Repeated
) -> tuple[dict[str, dict[int, float]], dict[str, int]]:
    """Return by user and day (as its ordinal) the hours, and notes."""
    problems, found, missed = Problems(), dict[str, dict[int, list[float]]](), 0
    for source in sources:
        lines, cells = columns(source, ["id", "date", "online_hours"])
        for line, key, day, hours in zip(lines, *cells, strict=True):
            where = f"{source.name}, line {line}"
            with problems.caught():
                if not key:
                    raise TraceError(f"{where}, id: expected a client id, found an empty cell")
                days = found.setdefault(key, {})
                if missing(hours):
                    missed += 1
                else:
                    days.setdefault(_day(day, where), []).append(
                        number(hours, f"{where}, online_hours", 0, 24)
                    )
    problems.check()
    if not any(found.values()):
        raise TraceError(f"{sources[0].name}: expected lines of id, date and online_hours, found none")
    often = [hours for days in found.values() for hours in days.values() if len(hours) > 1]
    notes = {
        "days": sum(len(days) for days in found.values()),
        "id_and_date_repeated": len(often),
        "of_these_with_different_hours": sum(len(set(hours)) > 1 for hours in often),
        "hours_missing": missed,
    }
    choose = _CHOICE[repeated]
    return {key: {d: choose(h) for d, h in days.items()} for key, days in found.items()}, notes


def _day(text: str, where: str) -> int:
    match = _DATE.fullmatch(text)
    try:
        if match:
            return date(2000 + int(match[3]), int(match[2]), int(match[1])).toordinal()
    except ValueError:
        pass
    raise TraceError(f"{where}, date: expected a date DD/MM/YY, found {shown(text)}")


def _trace(
    users: Mapping[str, Mapping[int, float]], days: list[int], place: Place, seed: int, after_end: AfterEnd
) -> Trace:
    rows = list[tuple[int, int, int, str]]()
    n_days = days[-1] - days[0] + 1
    for client, (key, hours) in enumerate(users.items()):
        if place == "unknown":
            rows.append((client, 0, n_days * DAY_US, "unknown"))
        else:
            rows += _placed(client, key, hours, days[0], n_days, place, seed)
    facts: dict[str, list[Any]] = {
        f"hours_{date.fromordinal(day):%Y_%m_%d}": [hours.get(day) for hours in users.values()]
        for day in days
    }
    client_, start, end, kind = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Trace.of(
        np.array(client_, np.int64),
        np.array(start, np.int64),
        np.array(end, np.int64),
        list(kind),
        clients=len(users),
        horizon_us=n_days * DAY_US,
        after_end=after_end,
        origin=date.fromordinal(days[0]).isoformat(),
        about=about(list(users), facts),
    )


def _placed(
    client: int, key: str, hours: Mapping[int, float], first: int, n_days: int, place: Place, seed: int
) -> list[tuple[int, int, int, str]]:
    rows = list[tuple[int, int, int, str]]()
    for i in range(n_days):
        begin_us, length_us = i * DAY_US, round(hours.get(first + i, 0.0) * HOUR_US)
        if first + i not in hours:
            rows.append((client, begin_us, begin_us + DAY_US, "unknown"))
        elif length_us:
            free_us = DAY_US - length_us
            if place == "random":
                start_us = int(rng(seed, f"flgo_usage {key!r}", first + i).integers(free_us + 1))
            else:
                start_us = min(max(round(EVENING_H * HOUR_US) - length_us // 2, 0), free_us)
            rows.append((client, begin_us + start_us, begin_us + start_us + length_us, "online"))
    return rows

"""Hours a day that app users were online: the daily table beside FLGo's pings (AparGarg99/App_Usage_Prediction).

A CSV file with the columns `id`, `date` (DD/MM/YY, of this century) and `online_hours` (0 to 24), one line a user and
day.

A user is a client, and time 0 is midnight before the earliest date. The file does not say when in the day a user was
online: by default a client is `unknown` throughout, and the hours of each day are kept as facts `hours_YYYY_MM_DD`.
With `place`, each day gets one window of that length; a day without a line is unknown. Where an (id, date) repeats,
`repeated` chooses the hours; the notes count such pairs, and those with different hours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any, Literal

from fedsim.common.errors import TraceError
from fedsim.common.rng import rng
from fedsim.common.units import DAY_US, HOUR_US
from fedsim.scenarios.importers.reading.files import Problems, about, columns, missing, number, shown
from fedsim.scenarios.importers.reading.series import head, labels, noted
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import AfterEnd, Trace, TraceFacts

Place = Literal["unknown", "random", "evening"]
Repeated = Literal["mean", "first", "last", "max"]

EVENING_H = 20.0
"""The hour at the centre of windows with `place = "evening"`, as far as the day allows."""
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

    Args:
        place: where in the day the hours lie. "unknown": not known, so a client is unknown throughout. "random": in one
            window, whose start is drawn from `seed`, id and date. "evening": in one window around 20:00.
        seed: seed of the windows of "random".
        repeated: which hours count where an (id, date) repeats: their "mean", the "first" or the "last" ones, or the
            greatest ("max").
        after_end: what follows the last date. "repeat": the world begins again. "stop": everybody is offline. "error":
            questions about later times are refused.
    """

    start_us = None if place == "unknown" else partial(_STARTS[place], seed)

    def read(sources: Sequence[Source]) -> Imported:
        labels(sources)
        counts = Counter[str]()
        hours = _hours(sources, counts)
        users = {key: {d: _CHOICE[repeated](h) for d, h in days.items()} for key, days in hours.items()}
        days = _days(users, sources[0].name)
        return Imported(_trace(users, days, start_us, after_end), noted(counts, place=place))

    return Importer(
        recognises=_recognises,
        read=read,
        licence="none stated",
        units="hours x 3.6e9 = microseconds; dates as written, without a time zone",
    )


def _recognises(source: Source) -> bool:
    return next(iter(head(source, 1)), "").split(",")[:3] == ["id", "date", "online_hours"]


def _hours(sources: Sequence[Source], counts: Counter[str]) -> dict[str, dict[int, list[float]]]:
    """Return the hours of all lines by user and day (as its ordinal), and count days, repeated and missing hours."""
    problems, users = Problems(), dict[str, dict[int, list[float]]]()
    for source in sources:
        lines, cells = columns(source, ["id", "date", "online_hours"])
        for line, key, day, hours in zip(lines, *cells, strict=True):
            place = f"{source.name}, line {line}"
            with problems.caught():
                if not key:
                    raise TraceError(f"{place}, id: expected a client id, found an empty cell")
                days = users.setdefault(key, {})
                counts["hours_missing"] += missing(hours)
                if not missing(hours):
                    of_day = days.setdefault(_day(day, place), [])
                    of_day.append(number(hours, f"{place}, online_hours", 0, 24))
    problems.check()
    if not any(users.values()):
        raise TraceError(f"{sources[0].name}: expected lines of id, date and online_hours, found none")
    counts["days"] = sum(len(days) for days in users.values())
    repeated = [hours for days in users.values() for hours in days.values() if len(hours) > 1]
    counts["id_and_date_repeated"] = len(repeated)
    counts["of_these_with_different_hours"] = sum(len(set(hours)) > 1 for hours in repeated)
    return users


def _day(text: str, place: str) -> int:
    match = _DATE.fullmatch(text)
    try:
        if match:
            return date(2000 + int(match[3]), int(match[2]), int(match[1])).toordinal()
    except ValueError:
        pass
    raise TraceError(f"{place}, date: expected a date DD/MM/YY, found {shown(text)}")


def _days(users: Mapping[str, Mapping[int, float]], name: str) -> list[int]:
    """Return the days that have lines, in order. Raises TraceError if they lie too far apart."""
    days = sorted({day for hours in users.values() for day in hours})
    if days[-1] - days[0] >= MOST_DAYS:
        raise TraceError(
            f"{name}: expected dates within {MOST_DAYS} days, found {date.fromordinal(days[0])} to"
            f" {date.fromordinal(days[-1])}"
        )
    return days


def _trace(
    users: Mapping[str, Mapping[int, float]],
    days: Sequence[int],
    start_us: Callable[[str, int, int], int] | None,
    after_end: AfterEnd,
) -> Trace:
    """Return the Trace of users; `start_us` gives the start of a window by user, day and length, None for none."""
    rows, all_days = list[tuple[int, int, int, str]](), range(days[0], days[-1] + 1)
    horizon_us = len(all_days) * DAY_US
    for client, (key, hours) in enumerate(users.items()):
        if start_us is None:
            rows.append((client, 0, horizon_us, "unknown"))
        else:
            rows += ((client, *window) for window in _windows(hours, all_days, partial(start_us, key)))
    row_columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    clients, start, end, kinds = (list(column) for column in row_columns)
    facts: dict[str, list[Any]] = {
        f"hours_{date.fromordinal(day):%Y_%m_%d}": [hours.get(day) for hours in users.values()]
        for day in days
    }
    world: TraceFacts = {"clients": len(users), "horizon_us": horizon_us, "after_end": after_end}
    world |= {"origin": date.fromordinal(days[0]).isoformat(), "about": about(list(users), facts)}
    return Trace.of(clients, start, end, kinds, **world)


def _windows(
    hours: Mapping[int, float], days: range, start_us: Callable[[int, int], int]
) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and kind of a user's interval on each day; a day without a line is unknown."""
    for i, day in enumerate(days):
        begin_us, length_us = i * DAY_US, round(hours.get(day, 0.0) * HOUR_US)
        if day not in hours:
            yield begin_us, begin_us + DAY_US, "unknown"
        elif length_us:
            window_us = begin_us + start_us(day, length_us)
            yield window_us, window_us + length_us, "online"


def _random_start_us(seed: int, user: str, day: int, length_us: int) -> int:
    return int(rng(seed, f"flgo_usage {user!r}", day).integers(DAY_US - length_us + 1))


def _evening_start_us(seed: int, user: str, day: int, length_us: int) -> int:
    return min(max(round(EVENING_H * HOUR_US) - length_us // 2, 0), DAY_US - length_us)


_STARTS = {"random": _random_start_us, "evening": _evening_start_us}

"""Spot machines that join and leave, as published with Bamboo (Thorpe et al., NSDI 2023; uclasystem/bamboo).

The first line shows which of two kinds a file is. *Events*: `ms since start, add or remove, machine`, no header; one
machine becomes one client, online from `add` to `remove`, or to the end of the file. The file lists all machines, so a
machine is offline before `add` and after `remove`. *Counts*: `YYYY-MM-DD, HH:MM:SS, machines alive`, no header; of k
machines clients 0 to k - 1 are online until the next line.

In counts, times go backwards and repeat, because later observations follow earlier ones that reach further: a line
replaces all earlier lines from its time on. Events are put in order of time. Both are counted in the notes. The last
event or count holds for 1 ms or 1 s. Each file has its own time 0; after its end its machines are unknown.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise

import numpy as np

from fedsim.common.errors import TraceError
from fedsim.common.units import US
from fedsim.scenarios.importers.reading.files import LONGEST_S, Problems, Row, rows, shown, whole
from fedsim.scenarios.importers.reading.fleet import MOST_MACHINES, Machine, fleet_trace, ranked
from fedsim.scenarios.importers.reading.series import head, labels, noted
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import AfterEnd

MS_US = 1000
_EVENT = re.compile(r"\d{1,13},(add|remove),\S")
_COUNT = re.compile(r"\d{4}-\d\d-\d\d, ?\d\d:\d\d:\d\d, ?\d+\s*$")


def bamboo(*, after_end: AfterEnd = "repeat") -> Importer:
    """Spot machines by add and remove events, or by counts of machines alive (Bamboo).

    Args:
        after_end: what follows the end of the longest file. "repeat": the world begins again. "stop": everybody is
            offline. "error": questions about later times are refused.
    """
    return Importer(
        recognises=_recognises,
        read=partial(_read, after_end=after_end),
        licence="MIT",
        units="milliseconds, or dates and times to the second, to microseconds; no time zone is given",
    )


def _read(sources: Sequence[Source], after_end: AfterEnd) -> Imported:
    problems, machines, counts, origins = Problems(), list[Machine](), Counter[str](), set[str]()
    for source, name in zip(sources, labels(sources), strict=True):
        with problems.caught():
            lines = rows(source)
            if lines and _is_date(lines[0].cells[0]):
                of_file, origin = _counted(source, name, lines, counts)
            else:
                of_file, origin = _events(source, name if len(sources) > 1 else "", lines, counts), ""
            machines += of_file
            origins.add(origin)
    problems.check()
    origin = origins.pop() if len(origins) == 1 else ""
    return Imported(fleet_trace(machines, after_end, origin), noted(counts))


def _recognises(source: Source) -> bool:
    lines = head(source, 5)
    return bool(lines) and any(all(p.match(line) for line in lines) for p in (_EVENT, _COUNT))


def _is_date(text: str) -> bool:
    return "-" in text[1:]


def _events(source: Source, name: str, lines: list[Row], counts: Counter[str]) -> list[Machine]:
    problems, events = Problems(), []
    for row in lines:
        with problems.caught():
            events.append(_event(row, f"{source.name}, line {row.line}"))
    problems.check()
    if not events:
        raise TraceError(f"{source.name}: expected lines of ms, add or remove, machine; found none")
    times = [time_us for time_us, _, _, _ in events]
    counts["times_that_decrease"] += sum(b < a for a, b in pairwise(times))
    events.sort(key=lambda event: event[0])
    end_us = events[-1][0] + MS_US
    windows = _windows(source, events, end_us)
    counts["machines_that_stay"] += sum(w[-1][1] == end_us for w in windows.values())
    return [
        Machine(
            f"{name}/{machine}" if name else machine,
            np.array([start for start, _ in of_machine], np.int64),
            np.array([end for _, end in of_machine], np.int64),
            end_us,
        )
        for machine, of_machine in windows.items()
    ]


def _event(row: Row, place: str) -> tuple[int, str, str, int]:
    if len(row.cells) != 3 or row.cells[1] not in ("add", "remove") or not row.cells[2]:
        raise TraceError(f"{place}: expected ms, add or remove, machine; found {shown(','.join(row.cells))}")
    time_us = whole(row.cells[0], f"{place}, time in ms", 0, LONGEST_S * 1000) * MS_US
    return time_us, row.cells[1], row.cells[2], row.line


def _windows(
    source: Source, events: list[tuple[int, str, str, int]], end_us: int
) -> dict[str, list[tuple[int, int]]]:
    """Return the windows in which each machine is online, machines in order of their first `add`."""
    windows, online_since, problems = dict[str, list[tuple[int, int]]](), dict[str, int](), Problems()
    for time_us, event, machine, line in events:
        if (event == "add") == (machine in online_since):
            state = "is there already" if event == "add" else "is not there"
            problems.add(f"{source.name}, line {line}: {event} of machine {shown(machine)}, which {state}")
        elif event == "add":
            before = windows.setdefault(machine, [])
            online_since[machine] = max(time_us, before[-1][1]) if before else time_us
        else:
            start_us = online_since.pop(machine)
            windows[machine].append((start_us, max(time_us, start_us + 1)))
    problems.check()
    for machine, start_us in online_since.items():
        windows[machine].append((start_us, end_us))
    return windows


def _counted(source: Source, name: str, lines: list[Row], counts: Counter[str]) -> tuple[list[Machine], str]:
    """Return machines and the date and time of the file's time 0."""
    problems, times, alive, seen = Problems(), list[int](), list[int](), set[int]()
    for row in lines:
        with problems.caught():
            time_s, count = _count(row, f"{source.name}, line {row.line}")
            kept = bisect_left(times, time_s)
            counts["times_that_decrease"] += bool(times) and time_s < times[-1]
            counts["times_that_repeat"] += time_s in seen
            seen.add(time_s)
            counts["lines_replaced_by_later_ones"] += len(times) - kept
            times[kept:], alive[kept:] = [time_s], [count]
    problems.check()
    edges_us = (np.append(times, times[-1] + 1) - times[0]) * US
    if edges_us[-1] > LONGEST_S * US:
        raise TraceError(
            f"{source.name}: expected times within {LONGEST_S:g} s, found {edges_us[-1] // US} s"
        )
    origin = datetime.fromtimestamp(times[0], UTC).replace(tzinfo=None).isoformat()
    facts = {"region": name.rsplit("/", 1)[-1].removesuffix(".txt")}
    return ranked(name, edges_us, np.array(alive, np.int64), facts), origin


def _count(row: Row, place: str) -> tuple[int, int]:
    if len(row.cells) != 3:
        raise TraceError(f"{place}: expected date, time and count, found {shown(', '.join(row.cells))}")
    text = " ".join(row.cells[:2])
    try:
        at = datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        raise TraceError(
            f"{place}: expected a date and time like 2021-12-10, 13:07:45, found {shown(text)}"
        ) from None
    return round(at.timestamp()), whole(row.cells[2], f"{place}, machines", 0, MOST_MACHINES)

"""Read speeds over time: recognise files by their first lines, turn samples into steps, and steps into Traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import TraceError
from fedsim.common.units import DAY_US, US
from fedsim.scenarios.importers.reading.files import LONGEST_S, Problems, about, number, rows
from fedsim.worlds.importer import Imported, Source
from fedsim.worlds.trace import Trace, TraceFacts

MOST_MBITS_PER_S = 1e8
"""Faster links count as mistakes."""
BYTES_PER_MBIT = 125_000
BYTES_PER_KBIT = 125


@dataclass(frozen=True, slots=True)
class Series:
    """A speed over time: half-open intervals in order, which repeat after `period_us`."""

    start_us: Ints
    end_us: Ints
    value: Floats
    """Bytes per second, or seconds per sample; 0 where nothing moves."""
    period_us: int


def head(source: Source, lines: int = 12) -> list[str]:
    """Return the first whole lines of a file as text, whatever its bytes are; none for a binary file."""
    part = source.data[:4096]
    if b"\0" in part:
        return []
    texts = part.decode("utf-8", errors="replace").lstrip("\ufeff").splitlines()
    last_is_cut = len(source.data) > len(part) and len(texts) > 1
    return (texts[:-1] if last_is_cut else texts)[:lines]


def is_number(text: str) -> bool:
    """Return whether a text is a plain finite number."""
    try:
        return bool(np.isfinite(float(text))) and "_" not in text
    except ValueError:
        return False


def head_numbers(source: Source, separator: str) -> list[list[float]]:
    """Return the numbers of a file's first lines if every line holds two, separated by `separator`; else none."""
    cells = [line.split(separator) for line in head(source) if line.strip()]
    fits = len(cells) > 1 and all(len(c) == 2 and all(map(is_number, c)) for c in cells)
    return [[float(cell) for cell in c] for c in cells] if fits else []


def labels(sources: Sequence[Source]) -> list[str]:
    """Return a unique name for each file: its own, preceded by as many folders as that takes.

    Raises TraceError if a file occurs twice.
    """
    paths = [source.path for source in sources]
    twice = [path for path, n in Counter(paths).items() if n > 1]
    if twice:
        raise TraceError(f"{twice[0]}: expected each file once, found it twice")
    names, depth = [path.name for path in paths], 1
    while len(set(names)) < len(names):
        depth, often = depth + 1, Counter(names)
        names = [
            "/".join(path.parts[-depth:]) if often[name] > 1 else name
            for path, name in zip(paths, names, strict=True)
        ]
    return names


def samples(source: Source, separator: str, unit_us: int, most: float) -> tuple[list[int], Ints, Floats]:
    """Return line numbers, times in microseconds and speeds (0 to `most`) from lines of (time, speed).

    `unit_us` is the file's unit of time in microseconds. Raises TraceError with every wrong line.
    """
    problems, triples = Problems(), []
    for row in rows(source, separator):
        place = f"{source.name}, line {row.line}"
        with problems.caught():
            if len(row.cells) != 2:
                raise TraceError(f"{place}: expected a time and a speed, found {len(row.cells)} columns")
            time = number(row.cells[0], f"{place}, time", 0, LONGEST_S * US / unit_us)
            triples.append(
                (row.line, round(time * unit_us), number(row.cells[1], f"{place}, speed", 0, most))
            )
    problems.check()
    if len(triples) < 2:
        raise TraceError(f"{source.name}: expected at least 2 lines of time and speed, found {len(triples)}")
    lines, times, speeds = zip(*triples, strict=True)
    return list(lines), np.array(times, np.int64), np.array(speeds, np.float64)


def in_order(time_us: Ints, value: Floats) -> tuple[Ints, Floats, Counter[str]]:
    """Return samples in order of time, those of one time as their mean, and how many times decreased or repeated."""
    counts = Counter(times_that_decrease=int((np.diff(time_us) < 0).sum()))
    times, which, often = np.unique(time_us, return_inverse=True, return_counts=True)
    counts["times_that_repeat"] = len(time_us) - len(times)
    return times, np.bincount(which, weights=value) / often, counts


def steps(time_us: Ints, value: Floats, last_us: int | None = None) -> Series:
    """Return a speed that holds from each time to the next, and after the last one for `last_us`.

    Times ascend; the first becomes 0. `last_us` is the median step by default.
    """
    if last_us is None:
        last_us = int(np.median(np.diff(time_us)))
    edges = np.append(time_us, time_us[-1] + max(last_us, 1)) - time_us[0]
    return Series(edges[:-1], edges[1:], value, int(edges[-1]))


def downlinks(sources: Sequence[Source], series_of: Callable[[Source, Counter[str]], Series]) -> Imported:
    """Return the world of files that hold one client's downlink each.

    `series_of` reads a file, and counts what it changed or left out.
    """
    problems, links, counts = Problems(), list[Series](), Counter[str]()
    for source in sources:
        with problems.caught():
            links.append(series_of(source, counts))
    problems.check()
    trace, more_counts = link_trace(labels(sources), {"downlink": links})
    return Imported(trace, noted(counts + more_counts))


def link_trace(
    ids: Sequence[str],
    links: Mapping[str, Sequence[Series | None]],
    facts: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[Trace, Counter[str]]:
    """Return a Trace of clients whose speeds repeat after each series' own length, and counts of what was left out.

    `links` holds by kind a series for each client, None where it is missing. The availability of clients is unknown.
    The horizon is a day, or the longest series. Raises TraceError for a series that never moves anything.
    """
    n, longest = len(ids), max((s.period_us for of_kind in links.values() for s in of_kind if s), default=0)
    horizon_us = max(DAY_US, longest)
    columns = [(np.arange(n), np.zeros(n, np.int64), np.full(n, horizon_us), np.ones(n))]
    kinds, counts, problems = ["unknown"] * n, Counter[str](), Problems()
    present = (
        (kind, i, s) for kind, of_kind in links.items() for i, s in enumerate(of_kind) if s is not None
    )
    for kind, client, series in present:
        moves = series.value > 0
        if not moves.any():
            problems.add(f"{ids[client]}: expected a {kind} that moves something, found only 0")
        counts["intervals_in_which_nothing_moves"] += int((~moves).sum())
        owner = np.full(int(moves.sum()), client)
        columns.append((owner, series.start_us[moves], series.end_us[moves], series.value[moves]))
        kinds += [kind] * len(owner)
    problems.check()
    clients, start, end, value = (np.concatenate(column) for column in zip(*columns, strict=True))
    world: TraceFacts = {"clients": n, "horizon_us": horizon_us, "after_end": "repeat"}
    world["periods"] = {k: np.array([s.period_us if s else 0 for s in many]) for k, many in links.items()}
    world["about"] = about(ids, facts)
    return Trace.of(clients, start, end, kinds, value, **world), counts


def noted(counts: Mapping[str, int], **more: Any) -> dict[str, Any]:
    """Return the notes of an import: the counts that are not 0, and `more`."""
    return {**{key: n for key, n in counts.items() if n}, **more}

"""FedScale's `client_behave_trace`: when phones were charging, from the FLASH study of an input-method app.

A pickle, or one Python tuple `(id, {...})` a line: client id to `active` and `inactive` (starts and ends of windows,
in whole seconds from the client's own start), `finish_time` (seconds after which the client's windows begin again),
`duration` (seconds available) and `model`. Three lines `[starts]`, `[ends]`, `clients in the full file` are one
client without a `finish_time`. Both ends of a window count, as in FedScale (`active[i] <= t <= inactive[i]`), so [5,
5] is a window. Source: SymbioticLab/FedScale, `internal/client_metadata.py`.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedsim.common.errors import ConfigError, TraceError
from fedsim.common.units import DAY_US, US, duration_us
from fedsim.scenarios.importers.reading.files import (
    LONGEST_S,
    Problems,
    Windows,
    about,
    availability,
    client_id,
    closed,
    member,
    number,
    of_type,
    shown,
    time_us,
    whole,
)
from fedsim.scenarios.importers.reading.pickles import plain_pickle
from fedsim.worlds.importer import Imported, Importer, Source


def fedscale_availability(*, period: str | float | None = None) -> Importer:
    """Charging windows of FedScale's client_behave_trace, looped after each client's own finish_time.

    Args:
        period: time after which the windows of clients without a `finish_time` begin again; None: such clients are
            unknown after their last window.
    """
    return Importer(
        recognises=_recognises,
        read=partial(_read, period_us=_period_us(period)),
        licence="Apache-2.0 (FedScale); excerpts via EricDinging/Propius MIT",
        units="seconds to microseconds; a window [a, b] with both ends becomes [a, b + 1 us)",
    )


def _read(sources: Sequence[Source], period_us: int | None) -> Imported:
    problems, clients, seen = Problems(), [], set[str]()
    for source in sources:
        for place, key, entry in _entries(source):
            with problems.caught():
                clients.append(_client(place, client_id(key, place, seen), entry))
    problems.check()
    if not clients:
        raise TraceError(f"{sources[0].name}: expected clients, found none")
    return _imported(clients, period_us)


@dataclass(frozen=True, slots=True)
class _Client:
    id: str
    start_us: list[int]
    end_us: list[int]
    period_us: int | None
    model: str | None
    duration_s: float | None


def _recognises(source: Source) -> bool:
    if source.data[:1] == b"\x80":
        head = source.data[: 2**20]
        return b"inactive" in head and b"finish_time" in head
    head = source.data[:4096].lstrip()
    if head.startswith(b"("):
        return b"'active'" in source.data[: 2**20] and b"'inactive'" in source.data[: 2**20]
    lines = source.data[: 2**20].split(b"\n")
    return len(lines) > 2 and all(re.fullmatch(rb"\[[\d, ]*\]\s*", line) for line in lines[:2])


def _entries(source: Source) -> Iterator[tuple[str, Any, Any]]:
    """Yield place, key and entry of each client of a file."""
    if source.data[:1] == b"\x80":
        table = of_type(plain_pickle(source), dict, source.name)
        yield from ((f"{source.name}, client {shown(key)}", key, entry) for key, entry in table.items())
        return
    lines = [(i, text.strip()) for i, text in enumerate(source.text().splitlines(), start=1) if text.strip()]
    if len(lines) in (2, 3) and all(text.startswith("[") for _, text in lines[:2]):
        yield _three_lines(source, lines)
        return
    for i, text in lines:
        place = f"{source.name}, line {i}"
        pair = _literal(text.rstrip(","), place)
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise TraceError(f"{place}: expected (client id, {{...}}), found {shown(pair)}")
        yield f"{place}, client {shown(pair[0])}", *pair


def _three_lines(source: Source, lines: list[tuple[int, str]]) -> tuple[str, Any, Any]:
    active, inactive = (_literal(text, f"{source.name}, line {i}") for i, text in lines[:2])
    for i, text in lines[2:]:
        whole(text, f"{source.name}, line {i}: number of clients in the full file")
    digits = re.search(r"\d+", source.path.stem)
    key = digits.group() if digits else source.path.stem
    return f"{source.name}, client {key}", key, {"active": active, "inactive": inactive, "finish_time": None}


def _literal(text: str, place: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise TraceError(f"{place}: expected a Python tuple, dict or list, found {shown(text)}") from None


def _client(place: str, key: str, entry: Any) -> _Client:
    active = of_type(member(entry, "active", place), list, f"{place}, 'active'")
    inactive = of_type(member(entry, "inactive", place), list, f"{place}, 'inactive'")
    if len(active) != len(inactive):
        raise TraceError(f"{place}: expected as many ends as starts, found {len(active)} and {len(inactive)}")
    start, end = _times(active, f"{place}, active"), _times(inactive, f"{place}, inactive")
    _ordered(start, end, place)
    finish, model = member(entry, "finish_time", place), entry.get("model")
    if finish is not None:
        finish = round(number(finish, f"{place}, 'finish_time'", 1e-6, LONGEST_S) * US)
    if model is not None:
        of_type(model, str, f"{place}, 'model'")
    duration = entry.get("duration")
    if duration is not None:
        duration = number(duration, f"{place}, 'duration'", 0)
    return _Client(key, start, end, finish, model, duration)


def _times(seconds: list[Any], place: str) -> list[int]:
    if all(type(t) is int and 0 <= t <= LONGEST_S for t in seconds):  # nearly always, and much faster
        return [t * US for t in seconds]
    return [time_us(t, f"{place}[{i}]") for i, t in enumerate(seconds)]


def _ordered(start: list[int], end: list[int], place: str) -> None:
    for i, (a, b) in enumerate(zip(start, end, strict=True)):
        if b < a:
            raise TraceError(f"{place}, window {i}: it ends at {b / US:g} s, before its start {a / US:g} s")
        if i and a < end[i - 1]:
            raise TraceError(
                f"{place}, window {i}: it starts at {a / US:g} s, before the last one ends at {end[i - 1] / US:g} s"
            )


def _imported(clients: list[_Client], period_us: int | None) -> Imported:
    client = np.repeat(np.arange(len(clients)), [len(c.start_us) for c in clients])
    start, end = closed(
        client, [t for c in clients for t in c.start_us], [t for c in clients for t in c.end_us]
    )
    periods = np.array([c.period_us or period_us or 0 for c in clients], np.int64)
    last = np.zeros(len(clients), np.int64)
    np.maximum.at(last, client, end)
    days_us = -(-int(np.where(periods > 0, 0, last).max()) // DAY_US) * DAY_US
    horizon_us = max(int(periods.max()), days_us, 1)
    limit = np.where(periods > 0, periods, horizon_us)
    known = (0, np.where(periods > 0, horizon_us, last))
    windows = Windows(client, start, np.minimum(end, limit[client]), known)
    facts: dict[str, Sequence[Any]] = {
        "model": [c.model for c in clients],
        "duration_s": [c.duration_s for c in clients],
    }
    table = about([c.id for c in clients], facts)
    notes = {
        "windows": len(client),
        "equal_windows_left_out": int((start == end).sum()),
        "windows_beyond_finish_time_cut": int((end > limit[client] + 1).sum()),
    }
    trace = availability(windows, table, horizon_us=horizon_us, period_us=periods)
    return Imported(trace, notes | _counts(clients))


def _counts(clients: list[_Client]) -> dict[str, int]:
    windows = [(a, b) for c in clients for a, b in zip(c.start_us, c.end_us, strict=True)]
    sums = [(c.duration_s, (sum(c.end_us) - sum(c.start_us)) / US) for c in clients]
    return {
        "zero_length_windows": sum(a == b for a, b in windows),
        "clients_without_finish_time": sum(c.period_us is None for c in clients),
        "durations_that_differ": sum(stated is not None and stated != total for stated, total in sums),
    }


def _period_us(period: str | float | None) -> int | None:
    try:
        period_us = None if period is None else duration_us(period)
    except ValueError as error:
        raise ConfigError(f"importer option 'period': {error}") from error
    if period_us == 0:
        raise ConfigError("importer option 'period': expected a duration above 0, found 0")
    return period_us

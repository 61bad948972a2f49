"""5G, LTE and 3G throughput of a phone in Ireland, static and driving (Raca et al., MMSys 2020; uccmisl/5Gdataset).

One CSV file is one session, a line about every second: `Timestamp` (local time, YYYY.MM.DD_HH.MM.SS), `DL_bitrate`
and `UL_bitrate` in kbit/s as the phone's applications moved them, `State` (D loading, I idle, VD), `NetworkMode`, and
more; `-` stands for no value.

One file becomes one client with a downlink and an uplink that begin again after the file's own length. A kbit is 1000
bits. A bitrate holds until the next line's second, the last one for 1 s; lines of one second become their mean, lines
out of order are sorted, and in lines without a bitrate that of the line before holds. Bitrates are those of the phone's
requests, so lower bounds of what the link can do. Those of idle lines are 0 and say nothing about the link: see `idle`.
Availability is unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Floats, Ints
from fedsim.common.errors import TraceError
from fedsim.common.units import US
from fedsim.scenarios.importers.reading.files import Problems, columns, missing, number, shown
from fedsim.scenarios.importers.reading.series import (
    BYTES_PER_KBIT,
    Series,
    head,
    in_order,
    labels,
    link_trace,
    noted,
    steps,
)
from fedsim.worlds.importer import Imported, Importer, Source

Idle = Literal["hold", "cut", "zero"]

EPOCH = datetime(1970, 1, 1)
_BITRATES = {"downlink": "DL_bitrate", "uplink": "UL_bitrate"}
_WANTED = ("Timestamp", "DL_bitrate", "UL_bitrate", "State", "NetworkMode", "Speed", "PINGAVG")


def irish_5g(*, idle: Idle = "hold", uplink: bool = True) -> Importer:
    """5G sessions of a phone in Ireland: one file is one client's downlink and uplink.

    Args:
        idle: what holds in seconds whose `State` is I. "hold": the last bitrate above 0 while loading; before any, the
            first. "cut": they are cut out, and the session is shorter. "zero": nothing moves, as written; only then do
            idle lines count in a second that has other lines as well.
        uplink: whether the uplink is kept, too; in downloads the phone hardly sends.
    """
    return Importer(
        recognises=_recognises,
        read=partial(_read, kinds=["downlink", "uplink"] if uplink else ["downlink"], idle=idle),
        licence="GPL-3 (repository)",
        units="kbit/s x 125 = bytes per second (a kbit is 1000 bits); local time as written",
    )


def _read(sources: Sequence[Source], kinds: Sequence[str], idle: Idle) -> Imported:
    problems, sessions, counts = Problems(), [], Counter[str]()
    for source in sources:
        with problems.caught():
            session = _session(source, kinds, counts)
            links = {kind: _link(session, kind, idle, counts) for kind in kinds}
            sessions.append((links, session.facts))
    problems.check()
    by_kind = {kind: [links[kind] for links, _ in sessions] for kind in kinds}
    facts = {key: [f[key] for _, f in sessions] for key in sessions[0][1]}
    trace, more_counts = link_trace(labels(sources), by_kind, facts)
    return Imported(trace, noted(counts + more_counts, idle=idle))


@dataclass(frozen=True, slots=True)
class _Session:
    name: str
    time_us: Ints
    kbits_per_s: Mapping[str, Floats]
    """By kind; NaN where there is no value."""
    idle: NDArray[np.bool_]
    facts: Mapping[str, Any]


def _recognises(source: Source) -> bool:
    first = next(iter(head(source, 1)), "")
    return first.startswith("Timestamp,") and "DL_bitrate" in first and "UL_bitrate" in first


def _session(source: Source, kinds: Sequence[str], counts: Counter[str]) -> _Session:
    lines, cells = columns(source, _WANTED)
    table = dict(zip(_WANTED, cells, strict=True))
    if not lines:
        raise TraceError(f"{source.name}: expected lines below the header, found none")
    problems = Problems()
    times = [_time(t, f"{source.name}, line {i}", problems) for i, t in zip(lines, cells[0], strict=True)]
    rates = {kind: _numbers(source, lines, table, _BITRATES[kind], problems) for kind in kinds}
    speed, ping = (_numbers(source, lines, table, name, problems) for name in ("Speed", "PINGAVG"))
    problems.check()
    counts["lines"] += len(lines)
    counts["missing_bitrates"] += sum(int(np.isnan(rate).sum()) for rate in rates.values())
    time_us = np.array([round((t - EPOCH).total_seconds()) * US for t in times], np.int64)
    counts["times_that_skip_seconds"] += int((np.diff(time_us) > US).sum())
    facts = {
        "start": min(times).isoformat(),
        "share_5g": float(np.mean([mode == "5G" for mode in table["NetworkMode"]])),
        "share_idle": float(np.mean([state == "I" for state in table["State"]])),
        "mean_speed_km_per_h": _mean(speed),
        "mean_ping_ms": _mean(ping),
    }
    idle = np.array([state == "I" for state in table["State"]])
    return _Session(source.name, time_us, rates, idle, facts)


def _time(text: str, place: str, problems: Problems) -> datetime:
    try:
        if len(text) == 19:
            return datetime.strptime(text, "%Y.%m.%d_%H.%M.%S")
    except ValueError:
        pass
    problems.add(f"{place}, Timestamp: expected a time like 2019.11.26_13.20.43, found {shown(text)}")
    return EPOCH


def _numbers(
    source: Source, lines: Sequence[int], table: Mapping[str, list[str]], column: str, problems: Problems
) -> Floats:
    values = np.full(len(lines), np.nan)
    for i, (line, text) in enumerate(zip(lines, table[column], strict=True)):
        if not missing(text):
            with problems.caught():
                values[i] = number(text, f"{source.name}, line {line}, {column}", 0, 1e11)
    return values


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _link(session: _Session, kind: str, idle: Idle, counts: Counter[str]) -> Series:
    known = ~np.isnan(session.kbits_per_s[kind])
    if not known.any():
        raise TraceError(f"{session.name}: expected a {_BITRATES[kind]} in some line, found none")
    rate, time_us, idle_lines = session.kbits_per_s[kind][known], session.time_us[known], session.idle[known]
    if kind == "downlink":
        counts.update(in_order(time_us, rate)[2])
    if idle != "zero":  # in a second that has other lines, an idle line says nothing
        kept = ~(idle_lines & np.isin(time_us, time_us[~idle_lines]))
        rate, time_us, idle_lines = rate[kept], time_us[kept], idle_lines[kept]
    times, kbits_per_s, _ = in_order(time_us, rate)
    resting = in_order(time_us, idle_lines.astype(np.float64))[1] == 1
    if kind == "downlink":
        counts["idle_seconds"] += int(resting.sum())
    if idle != "zero" and not (kbits_per_s[~resting] > 0).any():
        raise TraceError(
            f"{session.name}: expected seconds that are not idle with a {_BITRATES[kind]} above 0, found none"
        )
    if idle == "hold":
        kbits_per_s = _filled(kbits_per_s, resting)
    times[0], last_us = session.time_us.min(), int(session.time_us.max() - times[-1]) + US
    link = steps(times, kbits_per_s * BYTES_PER_KBIT, last_us)
    return _without(link, resting) if idle == "cut" else link


def _filled(value: Floats, resting: NDArray[np.bool_]) -> Floats:
    """Give resting seconds the last value above 0 of seconds that do not rest; before any, the first."""
    usable = np.flatnonzero(~resting & (value > 0))
    last = usable[np.maximum(np.searchsorted(usable, np.arange(len(value)), side="right") - 1, 0)]
    return np.where(resting, value[last], value)


def _without(link: Series, resting: NDArray[np.bool_]) -> Series:
    """Cut resting intervals out and close the gaps."""
    ends = np.cumsum((link.end_us - link.start_us)[~resting])
    return Series(np.append(0, ends[:-1]), ends, link.value[~resting], int(ends[-1]))

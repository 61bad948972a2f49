"""Speed tests of phones on US 4G and 5G networks with Ookla's Speedtest, as published in eqfy/fl-experiments.

A CSV file with a header, one test a line: `Date` (MM/DD/YYYY, H:MM AM), `downlink_Mbps` and `uplink_Mbps` in Mbit/s,
`latency_ms`, `radio_type`, `UE_model`, `carrier`, `UE_Server_distance_km` (often empty), and more.

One test becomes one client with a constant downlink and uplink; its id is its number in the file, from 0. The other
columns become facts. Availability is unknown. A test with a missing speed, or one of 0, is left out, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fedsim.common.errors import TraceError
from fedsim.scenarios.importers.reading.files import (
    Problems,
    columns,
    missing,
    number,
    rows,
    shown,
    speed_table,
)
from fedsim.scenarios.importers.reading.series import BYTES_PER_MBIT, MOST_MBITS_PER_S, head, labels, noted
from fedsim.worlds.importer import Imported, Importer, Source

_SPEEDS = ("downlink_Mbps", "uplink_Mbps")
_NUMBERS = {"latency_ms": "latency_ms", "UE_Server_distance_km": "server_distance_km"}
_TEXTS = {
    "radio_type": "radio_type",
    "UE_model": "model",
    "carrier": "carrier",
    "UE_location": "location",
    "connection_mode": "connection_mode",
    "sponsor_name": "sponsor",
    "Server_city": "server_city",
    "Server_state": "server_state",
    "country": "country",
    "Speedtest_URL": "url",
}


def ookla() -> Importer:
    """Speed tests of phones (Ookla): one test is one client with a constant downlink and uplink."""
    return Importer(
        recognises=_recognises,
        read=_read,
        licence="none stated",
        units="Mbit/s x 125,000 = bytes per second",
    )


def _read(sources: Sequence[Source]) -> Imported:
    problems, tests = Problems(), list[_Test]()
    for source, name in zip(sources, labels(sources), strict=True):
        prefix = f"{name}#" if len(sources) > 1 else ""
        tests += _tests(source, prefix, problems)
    problems.check()
    kept = [t for t in tests if t.down > 0 and t.up > 0]
    if not kept:
        raise TraceError(f"{sources[0].name}: expected tests with speeds above 0, found none")
    speeds = {
        "downlink": [t.down * BYTES_PER_MBIT for t in kept],
        "uplink": [t.up * BYTES_PER_MBIT for t in kept],
    }
    names = dict.fromkeys(name for t in kept for name in t.facts)
    facts = {name: [t.facts.get(name) for t in kept] for name in names}
    counts = {"tests_left_out_without_speed": len(tests) - len(kept)}
    return Imported(speed_table([t.id for t in kept], speeds, facts), noted(counts))


@dataclass(frozen=True, slots=True)
class _Test:
    id: str
    down: float
    """Mbit/s; 0 for a missing value."""
    up: float
    facts: Mapping[str, Any]


def _recognises(source: Source) -> bool:
    first = next(iter(head(source, 1)), "").split(",")
    return all(name in first for name in _SPEEDS)


def _tests(source: Source, prefix: str, problems: Problems) -> Iterator[_Test]:
    header = [name for row in rows(source)[:1] for name in row.cells]
    wanted = [*_SPEEDS, *(name for name in ("Date", *_NUMBERS, *_TEXTS) if name in header)]
    lines, cells = columns(source, wanted)
    for i, (line, *of_line) in enumerate(zip(lines, *cells, strict=True)):
        place, row = f"{source.name}, line {line}", dict(zip(wanted, of_line, strict=True))
        with problems.caught():
            down, up = (_speed(row[name], f"{place}, {name}") for name in _SPEEDS)
            yield _Test(f"{prefix}{i}", down, up, _facts(row, place))


def _speed(text: str, place: str) -> float:
    mbits_per_s = 0.0 if missing(text) else number(text, place, 0, MOST_MBITS_PER_S)
    return mbits_per_s if mbits_per_s > 1e-12 else 0.0


def _facts(row: Mapping[str, str], place: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if not missing(row.get("Date", "")):
        facts["date"] = _date(row["Date"], place)
    for name, column in _NUMBERS.items():
        if not missing(row.get(name, "")):
            facts[column] = number(row[name], f"{place}, {name}", 0, 1e9)
    facts |= {column: row[name] for name, column in _TEXTS.items() if not missing(row.get(name, ""))}
    return facts


def _date(text: str, place: str) -> str:
    try:
        return datetime.strptime(text, "%m/%d/%Y, %I:%M %p").isoformat()
    except ValueError:
        raise TraceError(
            f"{place}, Date: expected a time like '01/13/2021, 10:22 AM', found {shown(text)}"
        ) from None

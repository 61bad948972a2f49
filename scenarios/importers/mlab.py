"""Speed tests of the Measurement Lab (NDT), as extracted in eqfy/fl-experiments.

A JSON list of objects, all values texts: `date` (YYYY-MM-DD), `dl_mbps` and `ul_mbps` in Mbit/s.

One test becomes one client with a constant downlink and uplink; its id is its number in the file, from 0. Availability
is unknown. A test with a speed of 0 is left out, and counted. Uploads near 0.4209 Mbit/s are over-represented in the
published extract, whose authors drop them: see `drop_suspicious`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from fedsim.common.errors import TraceError
from fedsim.scenarios.importers.reading.files import Problems, json_of, member, number, of_type, speed_table
from fedsim.scenarios.importers.reading.series import BYTES_PER_MBIT, MOST_MBITS_PER_S, head, labels, noted
from fedsim.worlds.importer import Imported, Importer, Source

SUSPICIOUS_MBITS_PER_S = (0.4209, 0.4210)


def mlab(*, drop_suspicious: bool = False) -> Importer:
    """Speed tests of M-Lab NDT: one test is one client with a constant downlink and uplink.

    Args:
        drop_suspicious: leave out tests with an upload from 0.4209 to 0.4210 Mbit/s, as the extract's authors do.
    """
    return Importer(
        recognises=_recognises,
        read=partial(_read, drop_suspicious=drop_suspicious),
        licence="CC0 (M-Lab data); none stated for the extract",
        units="Mbit/s x 125,000 = bytes per second",
    )


def _read(sources: Sequence[Source], drop_suspicious: bool) -> Imported:
    counts, problems, tests = Counter[str](), Problems(), list[tuple[str, str | None, float, float]]()
    for source, name in zip(sources, labels(sources), strict=True):
        prefix = f"{name}#" if len(sources) > 1 else ""
        for i, entry in enumerate(of_type(json_of(source), list, source.name)):
            with problems.caught():
                tests.append((f"{prefix}{i}", *_test(entry, f"{source.name}, entry {i}")))
    problems.check()
    kept = [test for test in tests if _keeps(test[2], test[3], drop_suspicious, counts)]
    if not kept:
        raise TraceError(f"{sources[0].name}: expected tests with speeds above 0, found none")
    ids, dates, down, up = zip(*kept, strict=True)
    speeds = {"downlink": [d * BYTES_PER_MBIT for d in down], "uplink": [u * BYTES_PER_MBIT for u in up]}
    return Imported(speed_table(ids, speeds, {"date": dates}), noted(counts))


def _recognises(source: Source) -> bool:
    start = source.data[:1000].lstrip()
    return start.startswith(b"[") and b'"dl_mbps"' in start and bool(head(source))


def _test(entry: Any, place: str) -> tuple[str | None, float, float]:
    down, up = (
        number(member(entry, key, place), f"{place}, {key}", 0, MOST_MBITS_PER_S)
        for key in ("dl_mbps", "ul_mbps")
    )
    date = entry.get("date")
    return (None if date is None else of_type(date, str, f"{place}, date")), down, up


def _keeps(down: float, up: float, drop_suspicious: bool, counts: Counter[str]) -> bool:
    low, high = SUSPICIOUS_MBITS_PER_S
    suspicious, dead = low <= up <= high, min(down, up) < 1e-12
    counts["suspicious_uploads"] += suspicious
    counts["tests_left_out_with_speed_0"] += dead
    counts["tests_left_out_as_suspicious"] += suspicious and drop_suspicious and not dead
    return not dead and not (suspicious and drop_suspicious)

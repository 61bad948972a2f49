"""Seconds that FLASH's phones spent charging, with the screen on and unlocked over a week: totals without positions.

A list of objects with `guid`, `model`, `screen_on_duration`, `battery_charged_on_duration`, `screen_unlock_duration`.
The table does not say when, so availability is `unknown` throughout, and the totals are kept as facts about the
clients. Source: AymenOML/FedPylot_Client_Selection,
`Android_Traces/aggregated_durations.json`.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedsim.common.errors import TraceError
from fedsim.scenarios.importers.reading.files import (
    Problems,
    client_id,
    json_of,
    member,
    number,
    of_type,
    speed_table,
)
from fedsim.worlds.importer import Imported, Importer, Source

_FACTS = {
    "screen_on_duration": "screen_on_s",
    "battery_charged_on_duration": "charging_s",
    "screen_unlock_duration": "unlocked_s",
}
_SPAN_S = 7 * 86_400


def flash_durations() -> Importer:
    """Clients of which only weekly totals are known: model, seconds charging, with screen on, unlocked."""
    return Importer(
        recognises=_recognises,
        read=_read,
        licence="none stated; derived from FLASH (BSD-2-Clause)",
        units="seconds, kept as they are; charging_share = charging_s / 7 days",
    )


def _recognises(source: Source) -> bool:
    head = source.data[:65536]
    return head.lstrip()[:1] == b"[" and b'"battery_charged_on_duration"' in head and b'"guid"' in head


def _read(sources: Sequence[Source]) -> Imported:
    problems, ids, models, seen = Problems(), [], [], set[str]()
    facts: dict[str, list[float]] = {name: [] for name in _FACTS.values()}
    for source in sources:
        for i, entry in enumerate(of_type(json_of(source), list, source.name)):
            place = f"{source.name}, entry {i}"
            with problems.caught():
                ids.append(client_id(member(entry, "guid", place), f"{place}, 'guid'", seen))
                models.append(of_type(member(entry, "model", place), str, f"{place}, 'model'"))
                for field, name in _FACTS.items():
                    facts[name].append(number(member(entry, field, place), f"{place}, {field!r}", 0, 1e12))
    problems.check()
    if not ids:
        raise TraceError(f"{sources[0].name}: expected clients, found none")
    # Starts and ends were paired first-in first-out, so a total may exceed the week.
    share = [min(s / _SPAN_S, 1.0) for s in facts["charging_s"]]
    over = sum(s > _SPAN_S for s in facts["charging_s"])
    trace = speed_table(ids, {}, {"model": models, **facts, "charging_share": share})
    return Imported(trace, {"charging_longer_than_a_week": over, "windows": "not in the file"})

"""Read the events of FLASH's state traces: from lines of text to windows in which a phone is ready."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from fedsim.common.errors import TraceError, closest
from fedsim.scenarios.importers.reading.files import member, of_type, shown

RULES: Mapping[str, frozenset[str]] = {
    "flash": frozenset({"locked", "wifi", "charging"}),
    "charging": frozenset({"charging"}),
    "charging_wifi": frozenset({"charging", "wifi"}),
    "idle_charging_wifi": frozenset({"screen_off", "charging", "wifi"}),
}
"""Flags that must hold for a phone to be ready, by name of the rule."""

_EFFECTS: Mapping[str, tuple[str, bool]] = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "screen_on": ("screen_off", False),
    "screen_off": ("screen_off", True),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("unknown", "2g", "3g", "4g", "5g"), ("wifi", False)),
}
_BATTERY = re.compile(r"\d{1,3}(\.\d+)?%", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.ASCII)


@dataclass(frozen=True, slots=True)
class Device:
    """A phone and its closed windows of readiness, in whole seconds from its first line."""

    id: str
    guid: str
    model: str
    first: datetime
    period_s: int
    windows: list[tuple[int, int]]
    lines: int = 0
    unordered: int = 0
    """Lines that are earlier than the one before them."""
    open_end: int = 0
    """1 if the phone was ready at its last line."""
    malformed: str = ""
    """The message about a line that does not split in two; empty if there is none."""


def device(key: str, entry: Any, place: str, needed: frozenset[str], keep_open: bool) -> Device:
    """Return one device, which is ready while all `needed` flags hold. Raises TraceError for unknown events and times.

    Lines are put in order of time; lines of the same time stay in the order of the file.
    """
    guid, model = (
        of_type(member(entry, name, place), str, f"{place}, {name!r}") for name in ("guid", "model")
    )
    text = of_type(member(entry, "messages", place), str, f"{place}, 'messages'")
    try:
        events = list(_events(text, place))
    except _Malformed as error:
        return Device(key, guid, model, datetime.min, 0, [], malformed=str(error))
    if not events:
        raise TraceError(f"{place}, 'messages': expected lines with a time and an event, found none")
    unordered = sum(b[0] < a[0] for a, b in pairwise(events))
    events.sort(key=lambda event: event[0])
    first, last = events[0][0], events[-1][0]
    windows, open_since = _windows(events, needed)
    length_s = int((last - first).total_seconds())
    if open_since is not None and keep_open:
        windows.append((open_since, length_s))
    is_open = int(open_since is not None)
    return Device(key, guid, model, first, length_s, windows, len(events), unordered, is_open)


class _Malformed(Exception):
    """A line that does not split in two."""


def _events(text: str, place: str) -> Iterator[tuple[datetime, str]]:
    for i, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        parts = line.strip().split("\t")
        if len(parts) != 2:
            raise _Malformed(f"{place}, line {i}: expected a time, a tab and an event, found {shown(line)}")
        event = parts[1].strip().lower()
        if event not in _EFFECTS and not _BATTERY.fullmatch(event):
            known = closest(event[:40], _EFFECTS)
            raise TraceError(f"{place}, line {i}: there is no event {shown(event)}{known}")
        yield _time(parts[0].strip(), f"{place}, line {i}"), event


def _time(text: str, place: str) -> datetime:
    try:
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text)
    except ValueError:
        pass
    raise TraceError(f"{place}: expected a time such as 2020-01-28 21:30:05, found {shown(text)}")


def _windows(
    events: list[tuple[datetime, str]], needed: frozenset[str]
) -> tuple[list[tuple[int, int]], int | None]:
    """Return windows in seconds from the first event, and the start of one that is open at the last event, or None."""
    flags: set[str] = set()
    windows: list[tuple[int, int]] = []
    open_since: int | None = None
    for time, event in events:
        flag, on = _EFFECTS.get(event, ("battery", True))
        (flags.add if on else flags.discard)(flag)
        now_s = int((time - events[0][0]).total_seconds())
        if open_since is None and needed <= flags:
            open_since = now_s
        elif open_since is not None and not needed <= flags:
            windows.append((open_since, now_s))
            open_since = None
    return windows, open_since

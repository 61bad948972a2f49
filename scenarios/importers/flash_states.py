"""FLASH's `state_traces.json`: the states that phones reported over a week: charging, lock, screen, network.

An object: device id to `guid`, `model` (Android model) and `messages`, a text of lines `YYYY-MM-DD HH:MM:SS`, tab,
event. All flags are false at first. A device is ready while the flags of a rule hold; both ends of such a window
count. Its windows begin again after int(last time - first time), at the same phase as in FLASH, which takes time
modulo that period. Source: PKU-Chengxu/FLASH, `models/timer.py`; `reading/flash_events.py` reads the lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator

from fedsim.common.arrays import Ints
from fedsim.common.errors import ConfigError, TraceError
from fedsim.common.units import US
from fedsim.scenarios.importers.reading.files import (
    Problems,
    Windows,
    about,
    availability,
    closed,
    json_of,
    of_type,
)
from fedsim.scenarios.importers.reading.flash_events import RULES, Device, device
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import Trace


def _date_as_text(value: Any) -> Any:
    """Return a date or time of TOML, which an unquoted one on the command line is, as text."""
    return str(value) if isinstance(value, date) else value


def flash_states(
    *,
    ready: Literal["flash", "charging", "charging_wifi", "idle_charging_wifi"] = "flash",
    open_end: Literal["drop", "keep"] = "drop",
    no_window: Literal["drop", "keep"] = "drop",
    malformed: Literal["refuse", "drop"] = "refuse",
    origin: Annotated[str, BeforeValidator(_date_as_text)] = "first",
) -> Importer:
    """Windows in which phones of FLASH's state_traces.json were ready; they repeat after each phone's own length.

    Args:
        ready: when a phone is ready. "flash": locked, on Wi-Fi and charging (FLASH's code). "charging": FedScale's
            rule. "charging_wifi": charging and on Wi-Fi. "idle_charging_wifi": screen off, charging and on Wi-Fi
            (FLASH's paper).
        open_end: windows still open at a phone's last line: "drop" leaves them out, as FLASH does, "keep" ends them
            there.
        no_window: phones without a window: "drop" leaves them out, as FLASH does, "keep" makes them clients that are
            never online.
        malformed: phones with a line that does not split in two: "refuse" raises an error, "drop" leaves them out, as
            FLASH does.
        origin: date and time of time 0, such as "2020-01-02 00:00:00"; "first": the earliest line of all.
    """
    options = _Options(ready, open_end == "keep", no_window == "keep", malformed == "drop", _origin(origin))
    return Importer(
        recognises=_recognises,
        read=partial(_read, options=options),
        licence="BSD-2-Clause (PKU-Chengxu/FLASH)",
        units="local clock times to microseconds from the origin; a window [a, b] becomes [a, b + 1 us)",
    )


@dataclass(frozen=True, slots=True)
class _Options:
    ready: str
    keep_open: bool
    keep_without_window: bool
    drop_malformed: bool
    origin: datetime | None


def _read(sources: Sequence[Source], options: _Options) -> Imported:
    devices, malformed = _devices(sources, options)
    lasting = [d for d in devices if d.period_s > 0]
    kept = [d for d in lasting if d.windows or options.keep_without_window]
    if not kept:
        raise TraceError(
            f"{sources[0].name}: none of {len(devices)} devices is ever ready by {options.ready!r}"
        )
    left_out = {
        "malformed": malformed,
        "all_at_one_time": len(devices) - len(lasting),
        "no_window": len(lasting) - len(kept),
    }
    trace = _trace(kept, options.origin or min(d.first for d in kept))
    return Imported(trace, _notes(devices) | {"left_out": left_out, "ready": options.ready})


def _recognises(source: Source) -> bool:
    head = source.data[: 2**20]
    return head.lstrip()[:1] == b"{" and b'"messages"' in head and b'"guid"' in head


def _devices(sources: Sequence[Source], options: _Options) -> tuple[list[Device], int]:
    """Return the devices in file order, and how many are left out for malformed lines."""
    problems, devices, malformed = Problems(), list[Device](), 0
    needed, seen = RULES[options.ready], set[str]()
    for source in sources:
        for key, entry in of_type(json_of(source), dict, source.name).items():
            place = f"{source.name}, device {key!r}"
            with problems.caught():
                if key in seen:
                    raise TraceError(f"{place}: this device is in another file, too")
                seen.add(key)
                phone = device(key, entry, place, needed, options.keep_open)
                if not phone.malformed:
                    devices.append(phone)
                elif options.drop_malformed:
                    malformed += 1
                else:
                    raise TraceError(
                        f"{phone.malformed}; malformed='drop' leaves such devices out, as FLASH does"
                    )
    problems.check()
    return devices, malformed


def _trace(devices: list[Device], origin: datetime) -> Trace:
    periods = np.array([d.period_s for d in devices], np.int64) * US
    shift = np.array([(d.first - origin).total_seconds() for d in devices], np.int64) * US
    pairs = [(i, a * US, b * US) for i, d in enumerate(devices) for a, b in d.windows]
    client, start, end = np.array(pairs, np.int64).reshape(-1, 3).T
    start, end = closed(client, start, end)
    windows = Windows(client, start, np.minimum(end, periods[client]))
    facts = {
        "guid": [d.guid for d in devices],
        "model": [d.model for d in devices],
        "first_line": [d.first.isoformat() for d in devices],
    }
    return availability(
        _shifted(windows, shift, periods),
        about([d.id for d in devices], facts),
        horizon_us=int(periods.max()),
        period_us=periods,
        origin=origin.isoformat(),
    )


def _shifted(windows: Windows, shift_us: Ints, period_us: Ints) -> Windows:
    """Shift windows modulo their client's period; those across its end become two."""
    period, nonempty = period_us[windows.client], windows.end_us > windows.start_us
    start = (windows.start_us + shift_us[windows.client]) % period
    end = start + windows.end_us - windows.start_us
    across = nonempty & (end > period)
    return Windows(
        np.concatenate([windows.client[nonempty], windows.client[across]]),
        np.concatenate([start[nonempty], np.zeros(int(across.sum()), np.int64)]),
        np.concatenate([np.minimum(end, period)[nonempty], (end - period)[across]]),
    )


def _notes(devices: list[Device]) -> dict[str, int]:
    return {
        "lines": sum(d.lines for d in devices),
        "lines_out_of_order_sorted": sum(d.unordered for d in devices),
        "windows": sum(len(d.windows) for d in devices),
        "windows_open_at_the_end": sum(d.open_end for d in devices),
    }


def _origin(text: str) -> datetime | None:
    if text == "first":
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        raise ConfigError(
            f"importer option 'origin': expected 'first' or a time such as '2020-01-02 00:00:00', found {text!r}"
        ) from None

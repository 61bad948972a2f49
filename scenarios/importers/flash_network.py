"""FLASH's `speed_distri.json`: mean and spread of download and upload speeds of phones.

An object: guid to `down_u`, `down_sigma`, `up_u`, `up_sigma`, mean and deviation of a normal law from which FLASH
draws a speed for each transfer. FLASH's source says `kb/s`, but its arithmetic divides bytes by 1024 (download) or
1000 (upload) and then by the speed: kilobytes a second. Source: PKU-Chengxu/FLASH, `models/speed_distri.json`,
`models/client.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from fedsim.common.errors import TraceError
from fedsim.scenarios.importers.reading.files import (
    Problems,
    client_id,
    json_of,
    member,
    number,
    of_type,
    positive,
    speed_table,
)
from fedsim.worlds.importer import Imported, Importer, Source
from fedsim.worlds.trace import Trace

_BYTES = {"kB/s": 1000.0, "kbit/s": 125.0}


def flash_network(*, unit: Literal["kB/s", "kbit/s"] = "kB/s") -> Importer:
    """Mean network speeds of FLASH's phones; the spread is kept as `downlink_cv` and `uplink_cv`, deviation / mean.

    Args:
        unit: unit of the numbers: "kB/s" follows FLASH's arithmetic, "kbit/s" its comment.
    """
    return Importer(
        recognises=_recognises,
        read=partial(_read, bytes_per_s=_BYTES[unit]),
        licence="BSD-2-Clause (PKU-Chengxu/FLASH)",
        units=f"{unit} x {_BYTES[unit]:g} bytes/s; the mean of each phone's law",
    )


def _read(sources: Sequence[Source], bytes_per_s: float) -> Imported:
    problems, ids, seen = Problems(), [], set[str]()
    columns: dict[str, list[float]] = {name: [] for name in ("down_u", "down_sigma", "up_u", "up_sigma")}
    for source in sources:
        for key, entry in of_type(json_of(source), dict, source.name).items():
            place = f"{source.name}, {key!r}"
            with problems.caught():
                ids.append(client_id(key, place, seen))
                for name, values in columns.items():
                    value, of_value = member(entry, name, place), f"{place}, {name!r}"
                    is_spread = name.endswith("sigma")
                    values.append(
                        number(value, of_value, 0, 1e15) if is_spread else positive(value, of_value)
                    )
    problems.check()
    if not ids:
        raise TraceError(f"{sources[0].name}: expected clients, found none")
    return Imported(_trace(ids, columns, bytes_per_s))


def _recognises(source: Source) -> bool:
    head = source.data[:65536]
    return head.lstrip()[:1] == b"{" and b'"down_u"' in head and b'"up_sigma"' in head


def _trace(ids: list[str], columns: dict[str, list[float]], bytes_per_s: float) -> Trace:
    ways = {"downlink": "down", "uplink": "up"}
    speeds = {kind: [v * bytes_per_s for v in columns[f"{way}_u"]] for kind, way in ways.items()}
    spread = {
        f"{kind}_cv": [s / u for s, u in zip(columns[f"{way}_sigma"], columns[f"{way}_u"], strict=True)]
        for kind, way in ways.items()
    }
    return speed_table(ids, speeds, spread)

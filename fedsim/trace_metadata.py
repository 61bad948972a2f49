"""What is known about a trace besides its table; a Parquet file carries it under keys `fedsim.*`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, get_args

import numpy as np

from fedsim.errors import TraceError, closest
from fedsim.trace_check import listed

AfterEnd = Literal["error", "repeat", "stop"]
AFTER_ENDS: tuple[str, ...] = get_args(AfterEnd)
"""What a world does after its horizon: refuse to answer, begin again, or be offline for ever."""
SCHEMA_VERSION = 1
MOST_CLIENTS = 2**31 - 1
MOST_INT64 = 2**63 - 1
_PREFIX = "fedsim."


def to_metadata(
    clients: int, horizon_us: int, after_end: AfterEnd, source: str, origin: str
) -> dict[str, str]:
    """Return the metadata of a trace file."""
    facts = {
        "schema_version": SCHEMA_VERSION,
        "clients": clients,
        "horizon_us": horizon_us,
        "after_end": after_end,
        "source": source,
        "origin": origin,
    }
    return {_PREFIX + key: str(value) for key, value in facts.items()}


def from_metadata(raw: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Read a file's metadata back as arguments of Trace. Raises TraceError with every problem."""
    found = {
        k.decode(errors="replace"): v.decode(errors="replace")
        for k, v in raw.items()
        if k.startswith(_PREFIX.encode())
    }
    if not found:
        raise TraceError(
            "not a trace: the file holds no metadata 'fedsim.schema_version', 'fedsim.clients', ..."
        )
    lines, numbers = [], {}
    for key in ("schema_version", "clients", "horizon_us"):
        text = found.get(_PREFIX + key)
        try:
            numbers[key] = int(text or "")
        except ValueError:
            lines.append(f"metadata {_PREFIX + key!r}: expected an integer, found {text!r}")
    version = numbers.pop("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        lines.append(f"metadata 'fedsim.schema_version': expected {SCHEMA_VERSION}, found {version}")
    if lines:
        raise TraceError(listed(lines))
    return {**numbers, **{key: found.get(_PREFIX + key, "") for key in ("after_end", "source", "origin")}}


def metadata_problems(clients: Any, horizon_us: Any, after_end: Any, origin: str) -> list[str]:
    """Say what is wrong with a trace's numbers and words, one line for each problem."""
    lines = []
    for name, found in (("clients", clients), ("horizon_us", horizon_us)):
        if isinstance(found, bool) or not isinstance(found, int | np.integer) or found < 1:
            lines.append(f"{name}: expected a whole number of at least 1, found {found!r}")
    if not lines and clients > MOST_CLIENTS:
        lines.append(f"clients: expected at most {MOST_CLIENTS}, found {clients}")
    elif not lines and int(clients) * (int(horizon_us) + 1) > MOST_INT64:
        lines.append(
            f"clients x horizon_us: {clients} x {horizon_us} exceeds 2^63;"
            f" the longest horizon for so many clients is {MOST_INT64 // clients - 1}"
        )
    if after_end not in AFTER_ENDS:
        lines.append(f"after_end: unknown {after_end!r}{closest(str(after_end), AFTER_ENDS)}")
    try:
        datetime.fromisoformat(origin or "2000-01-01")
    except ValueError:
        lines.append(f"origin: expected an ISO date and time or an empty text, found {origin!r}")
    return lines

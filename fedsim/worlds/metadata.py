"""What is known about a trace besides its table; a Parquet file carries it under keys `fedsim.*`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from fedsim.common.errors import TraceError, closest
from fedsim.common.files import from_json
from fedsim.worlds.validation import KINDS, listed

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
    words = {key: found.get(_PREFIX + key, "") for key in ("after_end", "source", "origin")}
    return {**numbers, **words, **_more_from_metadata(found)}


def more_to_text(periods: Mapping[str, Any], about: pa.Table) -> str:
    """Write periods and facts about clients down as one JSON text, the same for equal contents."""
    return json.dumps(
        {
            "periods": {kind: np.asarray(periods[kind]).tolist() for kind in sorted(periods)},
            "about": {name: about.column(name).to_pylist() for name in about.column_names},
        }
    )


def more_to_metadata(periods: Mapping[str, Any], about: pa.Table) -> dict[str, str]:
    """Return the metadata of periods and facts about clients, nothing where there are none."""
    return {_PREFIX + "more": more_to_text(periods, about)} if periods or about.num_columns else {}


def _more_from_metadata(found: Mapping[str, str]) -> dict[str, Any]:
    text = found.get(_PREFIX + "more")
    if text is None:
        return {}
    try:
        more = from_json(text)
        return {"periods": dict(more["periods"]), "about": pa.table(more["about"])}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise TraceError(
            f"metadata {_PREFIX + 'more'!r}: expected JSON with periods and facts about clients, found {error}"
        ) from error


def checked_periods(
    periods: Mapping[str, ArrayLike], clients: int, horizon_us: int
) -> dict[str, NDArray[np.int64]]:
    """Return periods as arrays [clients]. Raises TraceError with a line for each kind or client that is wrong."""
    lines, arrays = [], {}
    for kind, given in periods.items():
        found = np.asarray(given)
        if kind not in KINDS or kind == "unknown":
            lines.append(f"periods: there is no kind {kind!r} to give a period{closest(kind, KINDS[:-1])}")
        elif found.shape != (clients,) or found.dtype.kind not in "iu":
            lines.append(
                f"periods of {kind!r}: expected whole microseconds for {clients} clients, found an array of shape "
                f"{found.shape} and type {found.dtype}"
            )
        else:
            wrong = np.flatnonzero((found < 0) | (found > horizon_us))
            lines += [
                f"periods of {kind!r}: client {c}: expected 0 to the horizon {horizon_us}, found {found[c]}"
                for c in wrong.tolist()
            ]
            arrays[kind] = found.astype(np.int64)
    if lines:
        raise TraceError(listed(lines))
    return arrays


def checked_about(about: pa.Table, clients: int) -> pa.Table:
    """Return the facts about clients with columns of plain numbers or texts. Raises TraceError."""
    if about.num_columns and about.num_rows != clients:
        raise TraceError(f"about: expected a row for each of {clients} clients, found {about.num_rows} rows")
    lines = [
        f"about: column {f.name!r}: expected numbers, texts or truth values, found {f.type}"
        for f in about.schema
        if not (
            pa.types.is_integer(f.type)
            or pa.types.is_floating(f.type)
            or pa.types.is_string(f.type)
            or pa.types.is_boolean(f.type)
            or pa.types.is_null(f.type)
        )
    ]
    if lines:
        raise TraceError(listed(lines))
    return about.combine_chunks().replace_schema_metadata(None)


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

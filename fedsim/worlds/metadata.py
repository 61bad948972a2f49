"""Read, write and check the metadata of a trace; a Parquet file holds it under keys `fedsim.*`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from fedsim.common.errors import TraceError, closest
from fedsim.common.files import from_json
from fedsim.worlds.validation import KINDS, is_number, listed

AfterEnd = Literal["error", "repeat", "stop"]
AFTER_ENDS: tuple[str, ...] = get_args(AfterEnd)
"""What happens after a world's horizon: questions are refused, the world begins again, or everybody is offline."""
SCHEMA_VERSION = 1
MOST_CLIENTS = 2**31 - 1
MOST_INT64 = 2**63 - 1
_PREFIX = "fedsim."


def to_metadata(facts: Mapping[str, Any], periods: Mapping[str, Any], about: pa.Table) -> dict[str, str]:
    """Return the metadata of a trace file; `facts` are the other fields of a Trace besides its table."""
    more = {"more": more_to_text(periods, about)} if periods or about.num_columns else {}
    texts = {"schema_version": SCHEMA_VERSION, **facts, **more}
    return {_PREFIX + key: str(value) for key, value in texts.items()}


def from_metadata(raw: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return a file's metadata as arguments of Trace. Raises TraceError with every problem."""
    decoded = {k.decode(errors="replace"): v.decode(errors="replace") for k, v in raw.items()}
    facts = {k.removeprefix(_PREFIX): text for k, text in decoded.items() if k.startswith(_PREFIX)}
    if not facts:
        raise TraceError(
            "not a trace: the file holds no metadata 'fedsim.schema_version', 'fedsim.clients', ..."
        )
    lines, numbers = [], {}
    for key in ("schema_version", "clients", "horizon_us"):
        text = facts.get(key)
        try:
            numbers[key] = int(text or "")
        except ValueError:
            lines.append(f"metadata {_PREFIX + key!r}: expected an integer, found {text!r}")
    version = numbers.pop("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        lines.append(f"metadata 'fedsim.schema_version': expected {SCHEMA_VERSION}, found {version}")
    if lines:
        raise TraceError(listed(lines))
    texts = {key: facts.get(key, "") for key in ("after_end", "source", "origin")}
    if "more" not in facts:
        return {**numbers, **texts}
    try:
        more = from_json(facts["more"])
        return {**numbers, **texts, "periods": dict(more["periods"]), "about": pa.table(more["about"])}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise TraceError(
            f"metadata 'fedsim.more': expected JSON with periods and facts about clients, found {error}"
        ) from error


def more_to_text(periods: Mapping[str, Any], about: pa.Table) -> str:
    """Return periods and facts about clients as JSON; equal contents give equal texts."""
    return json.dumps(
        {
            "periods": {kind: np.asarray(periods[kind]).tolist() for kind in sorted(periods)},
            "about": {name: about.column(name).to_pylist() for name in about.column_names},
        }
    )


def checked_periods(
    periods: Mapping[str, ArrayLike], clients: int, horizon_us: int
) -> dict[str, NDArray[np.int64]]:
    """Return periods as arrays [clients]. Raises TraceError with a line for each wrong kind or client."""
    lines, arrays = [], {}
    for kind, values in periods.items():
        period = np.asarray(values)
        if kind not in KINDS or kind == "unknown":
            lines.append(f"periods: there is no kind {kind!r} to give a period{closest(kind, KINDS[:-1])}")
        elif period.shape != (clients,) or period.dtype.kind not in "iu":
            lines.append(
                f"periods of {kind!r}: expected whole microseconds for {clients} clients, found an array of shape "
                f"{period.shape} and type {period.dtype}"
            )
        else:
            wrong = np.flatnonzero((period < 0) | (period > horizon_us))
            lines += [
                f"periods of {kind!r}: client {c}: expected 0 to the horizon {horizon_us}, found {period[c]}"
                for c in wrong.tolist()
            ]
            arrays[kind] = period.astype(np.int64)
    if lines:
        raise TraceError(listed(lines))
    return arrays


def checked_about(about: pa.Table, clients: int) -> pa.Table:
    """Return facts about clients as one chunk. Raises TraceError for columns of other types than numbers and texts."""
    if about.num_columns and about.num_rows != clients:
        raise TraceError(f"about: expected a row for each of {clients} clients, found {about.num_rows} rows")
    lines = [
        f"about: column {f.name!r}: expected numbers, texts or truth values, found {f.type}"
        for f in about.schema
        if not (is_number(f.type) or f.type in (pa.string(), pa.bool_(), pa.null()))
    ]
    lines += [
        f"about: column {f.name!r}: expected whole numbers below 2^63, found {pc.max(about[f.name])}"
        for f in about.schema
        if f.type == pa.uint64() and (pc.max(about[f.name]).as_py() or 0) >= 2**63
    ]
    if lines:
        raise TraceError(listed(lines))
    return about.combine_chunks().replace_schema_metadata(None)


def metadata_problems(clients: Any, horizon_us: Any, after_end: Any, origin: str) -> list[str]:
    """Return a line for each problem with a trace's numbers and words."""
    lines = []
    for name, number in (("clients", clients), ("horizon_us", horizon_us)):
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
            lines.append(f"{name}: expected a whole number of at least 1, found {number!r}")
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

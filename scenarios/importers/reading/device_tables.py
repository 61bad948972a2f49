"""Read pickled tables of devices: one entry per client, with numbers and texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from fedsim.common.errors import ConfigError, TraceError
from fedsim.scenarios.importers.reading.files import client_id, member, of_type, shown
from fedsim.scenarios.importers.reading.pickles import plain_pickle
from fedsim.worlds.importer import Source


def entries(sources: Sequence[Source], required: Sequence[str]) -> Iterator[tuple[str, str, dict[Any, Any]]]:
    """Yield the place in messages, the id as text and the fields of each client of pickled tables.

    Raises TraceError for an empty table, a missing field and an id that repeats.
    """
    seen: set[str] = set()
    for source in sources:
        table = of_type(plain_pickle(source), dict, source.name)
        if not table:
            raise TraceError(f"{source.name}: expected clients, found none")
        for key, entry in table.items():
            place = f"{source.name}, client {shown(key)}"
            text = client_id(key, place, seen)
            for field in required:
                member(entry, field, place)
            yield place, text, entry


def fact(values: Sequence[float]) -> list[float | None]:
    """Return numbers as a column of facts, with None for NaN."""
    return [None if math.isnan(v) else v for v in values]


def factor_option(name: str, value: float) -> None:
    """Raise ConfigError unless an importer's option is a number above 0."""
    if not (math.isfinite(value) and 1e-9 <= value <= 1e9):
        raise ConfigError(f"importer option {name!r}: expected a number above 0, found {value!r}")

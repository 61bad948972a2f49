"""Collect what the clients of a scenario write, and turn it into the tables of a Trace."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from fedsim.common.arrow_columns import numbers, texts
from fedsim.common.errors import TraceError
from fedsim.worlds.trace import KINDS, AfterEnd, Trace
from fedsim.worlds.validation import COLUMNS

Fact = str | bool | int | float
"""A fact about a client: text, a truth value or a finite number."""
CODES = {kind: code for code, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class TraceWriter:
    """The growing columns of a trace's table, and facts by name and client. All clients of a scenario write here."""

    horizon_us: int
    client: array[int] = field(default_factory=lambda: array("i"))
    start_us: array[int] = field(default_factory=lambda: array("q"))
    end_us: array[int] = field(default_factory=lambda: array("q"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    value: array[float] = field(default_factory=lambda: array("d"))
    about: dict[str, dict[int, Fact]] = field(default_factory=dict)

    @staticmethod
    def joined(parts: Sequence[TraceWriter]) -> TraceWriter:
        """Return the rows of several writers, one after the other; the first one takes them all in."""
        first, *others = parts
        for part in others:
            for name in COLUMNS:
                getattr(first, name).extend(getattr(part, name))
            for name, facts in part.about.items():
                first.about.setdefault(name, {}).update(facts)
        return first

    def trace(self, clients: int, after_end: AfterEnd = "error", source: str = "") -> Trace:
        """Return what was written as a Trace. Raises TraceError for malformed intervals and facts of mixed types."""
        columns = {name: numbers(np.asarray(getattr(self, name))) for name in COLUMNS}
        columns["kind"] = pa.DictionaryArray.from_arrays(columns["kind"], texts(KINDS))
        about = self._about_table(clients)
        return Trace(pa.table(columns), clients, self.horizon_us, after_end, source, about=about)

    def _about_table(self, clients: int) -> pa.Table:
        """Return the facts as a table with one row per client."""
        columns = {}
        for name, facts in sorted(self.about.items()):
            try:
                columns[name] = _column([facts.get(client) for client in range(clients)])
            except (pa.ArrowException, OverflowError) as error:
                raise TraceError(f"about {name!r}: expected one type for all clients: {error}") from error
        return pa.table(columns)


def _column(values: list[Fact | None]) -> pa.Array:
    types = set(map(type, values))
    array_of_numbers = np.array(values) if types in ({int}, {float}) else None
    # None for texts and gaps, another dtype for numbers beyond int64: Arrow decides what they are.
    if array_of_numbers is None or array_of_numbers.dtype not in (np.int64, np.float64):
        return pa.array(values)
    return numbers(array_of_numbers)

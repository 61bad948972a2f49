"""What the clients of a scenario have written, on its way to a Trace."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fedsim.common.arrow_columns import numbers, texts
from fedsim.common.errors import TraceError
from fedsim.worlds.trace import KINDS

Fact = str | bool | int | float
"""What can be said about a client besides its intervals; numbers are finite."""
CODES = {kind: code for code, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class Rows:
    """Where all clients write: columns that grow, and facts by name and client."""

    horizon_us: int
    client: array[int] = field(default_factory=lambda: array("i"))
    start_us: array[int] = field(default_factory=lambda: array("q"))
    end_us: array[int] = field(default_factory=lambda: array("q"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    value: array[float] = field(default_factory=lambda: array("d"))
    about: dict[str, dict[int, Fact]] = field(default_factory=dict)

    @staticmethod
    def joined(parts: Sequence[Rows]) -> Rows:
        """Return what several have written for different clients, one after the other."""
        first, *others = parts
        for part in others:
            for mine, theirs in zip(first._columns(), part._columns(), strict=True):
                mine.extend(theirs)
            for name, known in part.about.items():
                first.about.setdefault(name, {}).update(known)
        return first

    def _columns(self) -> tuple[array[Any], ...]:
        return self.client, self.start_us, self.end_us, self.kind, self.value

    def table(self) -> pa.Table:
        """Return the intervals as a table for a Trace."""
        kinds = pa.DictionaryArray.from_arrays(numbers(np.frombuffer(self.kind, np.int8)), texts(KINDS))
        return pa.table(
            {
                "client": numbers(np.frombuffer(self.client, np.int32)),
                "start_us": numbers(np.frombuffer(self.start_us, np.int64)),
                "end_us": numbers(np.frombuffer(self.end_us, np.int64)),
                "kind": kinds,
                "value": numbers(np.frombuffer(self.value, np.float64)),
            }
        )

    def about_table(self, clients: int) -> pa.Table:
        """Return the facts as a table of a row per client. Raises TraceError for facts of mixed types."""
        columns = {}
        for name, found in sorted(self.about.items()):
            try:
                columns[name] = _column([found.get(client) for client in range(clients)])
            except (pa.ArrowException, OverflowError) as error:
                raise TraceError(f"about {name!r}: expected one type for all clients: {error}") from error
        return pa.table(columns)


def _column(values: list[Fact | None]) -> pa.Array:
    kinds = set(map(type, values))
    plain = np.array(values) if kinds in ({int}, {float}) else None
    if plain is None or plain.dtype not in (np.int64, np.float64):  # texts, gaps, or numbers beyond int64
        return pa.array(values)
    return numbers(plain)

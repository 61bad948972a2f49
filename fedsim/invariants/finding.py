"""Invariants and their violations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedsim.invariants.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Violation:
    """A place in a run's files where an invariant does not hold."""

    table: str
    """A table of the run, or the name of another file."""
    row: int
    """The first wrong row, from 0 in the order of the file; -1 if the violation concerns no single row."""
    expected: str
    found: str
    more: int = 0
    """Number of further rows that are wrong in the same way."""
    invariant: str = ""

    def __str__(self) -> str:
        where = self.table if self.row < 0 else f"{self.table} row {self.row}"
        more = f" (and {self.more} more rows)" if self.more else ""
        return f"{self.invariant}: {where}: expected {self.expected}, found {self.found}{more}"


@dataclass(frozen=True, slots=True)
class Invariant:
    """A statement that must hold for every run."""

    name: str
    says: str
    look: Callable[[Evidence], Iterable[Violation]]
    basic: bool = False
    """Whether the other invariants can be checked only if this one holds."""


def invariant(look: Callable[[Evidence], Iterable[Violation]], *, basic: bool = False) -> Invariant:
    """Return a function as an Invariant, named after it and described by the first line of its docstring."""
    says = (look.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return Invariant(look.__name__.strip("_").replace("_", " "), says, look, basic)


def wrong(
    table: str, mask: NDArray[np.bool_], expected: Callable[[int], str] | str, found: Callable[[int], str]
) -> Iterator[Violation]:
    """Yield a violation for the first row of a table where `mask` [n] holds, with the number of further rows."""
    rows = np.flatnonzero(mask)
    if len(rows):
        first = int(rows[0])
        wanted = expected if isinstance(expected, str) else expected(first)
        yield Violation(table, first, wanted, found(first), len(rows) - 1)

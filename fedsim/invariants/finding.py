"""What an invariant is, and what is said where one does not hold."""

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
    """Something that must not be."""

    table: str
    """A table of the run, or the name of another file."""
    row: int
    """The first row that is wrong, from 0 in the order of the file; -1 if it is about no single row."""
    expected: str
    found: str
    more: int = 0
    """How many further rows are wrong in the same way."""
    invariant: str = ""

    def __str__(self) -> str:
        where = self.table if self.row < 0 else f"{self.table} row {self.row}"
        more = f" (and {self.more} more rows)" if self.more else ""
        return f"{self.invariant}: {where}: expected {self.expected}, found {self.found}{more}"


@dataclass(frozen=True, slots=True)
class Invariant:
    """One thing that must hold."""

    name: str
    says: str
    look: Callable[[Evidence], Iterable[Violation]]
    basic: bool = False
    """Whether others make no sense where it does not hold."""


def invariant(look: Callable[[Evidence], Iterable[Violation]], *, basic: bool = False) -> Invariant:
    """Make an Invariant of a function: its name says which, the first line of its documentation what it says."""
    says = (look.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return Invariant(look.__name__.strip("_").replace("_", " "), says, look, basic)


def wrong(
    table: str, mask: NDArray[np.bool_], expected: Callable[[int], str] | str, found: Callable[[int], str]
) -> Iterator[Violation]:
    """Yield the first of the rows [n] of a table where `mask` holds, with the number of the others."""
    rows = np.flatnonzero(mask)
    if len(rows):
        first = int(rows[0])
        wanted = expected if isinstance(expected, str) else expected(first)
        yield Violation(table, first, wanted, found(first), len(rows) - 1)

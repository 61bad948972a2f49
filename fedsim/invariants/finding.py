"""Invariants and their violations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arrays import Ints, Mask
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


def first(mask: Mask) -> Iterator[tuple[int, int]]:
    """Yield the first row where `mask` [n] holds, with the number of further rows; nothing if there is none."""
    rows = np.flatnonzero(mask)
    if len(rows):
        yield int(rows[0]), len(rows) - 1


def between(counts: Ints, least: Ints, most: Ints, text: str) -> Iterator[Violation]:
    """Check that counts [steps] lie in a range; `text` describes them, with `{}` in place of the range."""
    for i, more in first((counts < least) | (counts > most)):
        yield Violation("steps", i, text.format(range_text(least[i], most[i])), str(counts[i]), more)


def range_text(least: int, most: int) -> str:
    """Return a range of whole numbers in words."""
    return f"{least} to {most}" if most > least else str(least)


def repeated(values: NDArray[Any]) -> Mask:
    """Return [n] whether an equal value occurs in an earlier row."""
    repeats = np.ones(len(values), dtype=bool)
    repeats[np.unique(values, return_index=True)[1]] = False
    return repeats


def differs(*columns: NDArray[Any]) -> Mask:
    """Return [n] whether a row differs from the one before in any of the columns; the first row does."""
    changes = np.ones(len(columns[0]), dtype=bool)
    changes[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return changes

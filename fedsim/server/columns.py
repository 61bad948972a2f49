"""Rows combined column by column, a tile of columns at a time: medians and trimmed means of each parameter.

Sorting and all that follows it work on each column alone, so the order of the rows and the width of a tile change no
bit. The memory is that of the tiles in work, one per thread, whatever the number of parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.common.threads import each
from fedsim.server.rule import Columns, Floats

_NUMBERS = 2**18
"""Numbers of a tile, so few that it stays in the processor's cache while it is sorted."""
_NUMBERS_ON_GPU = 2**22
"""The same on a GPU, where each tile costs calls."""
_LEAST = 16
"""Columns of a tile of very many rows: a row is read by cache lines, each of 16 numbers."""
_WORTH = 2**20
"""Numbers from which threads are worth starting: several milliseconds of work."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Some rows of a tensor on any device, in any precision."""

    rows: torch.Tensor
    """[n, P]."""
    places: NDArray[np.intp]
    """[k] rows to read, in ascending order."""
    factors: Floats
    """[k] factor on each of them."""

    @classmethod
    def of(cls, rows: torch.Tensor, factors: Floats) -> Chosen:
        """Choose the rows [n, P] whose factor [n] is not 0."""
        factors = np.asarray(factors, dtype=np.float64)
        places = np.flatnonzero(factors)
        return cls(rows, places, factors[places])


def combine_columns(chosen: Sequence[Chosen], columns: Columns, out: torch.Tensor) -> torch.Tensor:
    """Fill `out` [P] with what `columns` makes of each column of the chosen rows, and return it; zeros without rows.

    Tiles have the precision of `out` and lie on its device; `columns` sees them in float64.
    """
    k = sum(len(some.places) for some in chosen)
    if not k:
        return out.zero_()
    readers = [_Reader(some, out) for some in chosen if len(some.places)]
    width = max((_NUMBERS if out.is_cpu else _NUMBERS_ON_GPU) // k, _LEAST)

    def combine(start: int) -> None:
        stop = min(start + width, len(out))
        tile = out.new_empty(stop - start, k)
        at = 0
        for reader in readers:
            reader.read(slice(start, stop), tile[:, at : at + reader.k])
            at += reader.k
        out[start:stop] = columns(_ascending(tile).double().T)

    each(combine, range(0, len(out), width), worth=out.is_cpu and k * len(out) >= _WORTH)
    return out


class _Reader:
    """Reads the chosen rows of one tensor, some columns at a time."""

    def __init__(self, chosen: Chosen, out: torch.Tensor) -> None:
        first, self.k = int(chosen.places[0]), len(chosen.places)
        together = first + self.k == int(chosen.places[-1]) + 1
        self.rows = chosen.rows[first : first + self.k] if together else chosen.rows
        self.places = None if together else torch.from_numpy(chosen.places).to(chosen.rows.device)
        plain = bool((chosen.factors == 1.0).all())
        self.factors = None if plain else torch.from_numpy(chosen.factors).to(out.device, out.dtype)

    def read(self, span: slice, into: torch.Tensor) -> None:
        """Write the columns `span` of the rows into the rows of `into` [c, k], multiplied by the factors."""
        part = self.rows[:, span]
        if self.places is not None:
            part = torch.index_select(part, 0, self.places)
        into.copy_(part.to(into.device).T)
        if self.factors is not None:
            into.mul_(self.factors)


def _ascending(tile: torch.Tensor) -> torch.Tensor:
    """Return `tile` [c, k] with each of its rows in ascending order; the tile itself may change.

    NumPy sorts on the processor, many times as fast as torch. The two zeros are equal, so any of them may come first:
    adding 0 turns them into one.
    """
    tile.add_(0.0)
    if not tile.is_cpu:
        return tile.sort(dim=1).values
    tile.numpy().sort(axis=1)
    return tile

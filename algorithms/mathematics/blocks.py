"""Solving a step block by block, and joining blocks whose solution is zero (FedLF, Pan et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsim.algorithms.mathematics.geometry import ROUNDING, bound, norm
from fedsim.server.rule import Floats


@dataclass(frozen=True, slots=True)
class Part:
    """The solution for `width` neighbouring blocks from `first` on: weights `[n]` over the rows."""

    gram: Floats
    """[n, n] inner products in these blocks together."""
    weights: Floats
    first: int
    width: int = 1
    residual: float = 0.0
    """KKT residual of the solution, where there is one."""


Solve = Callable[[Floats, int, int], Part]
"""From a Gram matrix, the first block and the number of blocks to their solution."""


def solved(grams: Floats, solve: Solve, *, merging: bool, tolerance: float) -> list[Part]:
    """Solve each block of `grams` `[L, n, n]`; with `merging` join zero ones to a neighbour until none is left.

    Zero means a norm of at most `tolerance` times the weighted sum of the rows' norms. The lowest zero block
    joins the next, the last one the block before it, one at a time.
    """
    parts = [solve(gram, index, 1) for index, gram in enumerate(grams)]
    while merging and len(parts) > 1:
        zero = next((i for i, part in enumerate(parts) if _is_zero(part, tolerance)), None)
        if zero is None:
            break
        a = min(zero, len(parts) - 2)
        one, two = parts[a : a + 2]
        joined = solve(one.gram + two.gram, one.first, one.width + two.width)
        parts = [*parts[:a], joined, *parts[a + 2 :]]
    return parts


def table_of(parts: list[Part]) -> Floats:
    """Return the weights `[L, n]`, one row per original block."""
    return np.stack([part.weights for part in parts for _ in range(part.width)])


def _is_zero(part: Part, tolerance: float) -> bool:
    table, gram = part.weights[None], part.gram[None]
    return bool(norm(table, gram) <= max(tolerance, ROUNDING**0.5) * bound(table, gram))

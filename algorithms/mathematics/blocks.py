"""Joining blocks of parameters whose solution is zero (FedLF, Pan et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsim.algorithms.mathematics.geometry import ROUNDING, bound, norm
from fedsim.server.rule import Floats


@dataclass(frozen=True, slots=True)
class Part:
    """The solution for `width` neighbouring blocks from `first` on."""

    gram: Floats
    """[n, n] inner products of the rows in these blocks together."""
    weights: Floats
    """[n] weights over the rows."""
    first: int
    width: int = 1
    residual: float = 0.0
    """KKT residual of the solution; 0 if the solver reports none."""


Solve = Callable[[Floats, int, int], Part]
"""From a Gram matrix, the first block and the number of blocks to their solution."""


def first_zero(parts: list[Part], tolerance: float) -> int | None:
    """Return the position of the first part whose solution is zero; None if there is none, or only one part.

    Zero means a norm of at most `tolerance` times the weighted sum of the rows' norms.
    """
    zeros = (position for position, part in enumerate(parts) if _is_zero(part, tolerance))
    return next(zeros, None) if len(parts) > 1 else None


def merged(parts: list[Part], position: int, solve: Solve) -> list[Part]:
    """Join the part at `position` with the next one, the last part with the one before it, and solve them together."""
    a = min(position, len(parts) - 2)
    one, two = parts[a : a + 2]
    return [*parts[:a], solve(one.gram + two.gram, one.first, one.width + two.width), *parts[a + 2 :]]


def weights_by_block(parts: list[Part]) -> Floats:
    """Return the weights `[L, n]`, one row per original block."""
    return np.stack([part.weights for part in parts for _ in range(part.width)])


def _is_zero(part: Part, tolerance: float) -> bool:
    table, gram = part.weights[None], part.gram[None]
    return bool(norm(table, gram) <= max(tolerance, ROUNDING**0.5) * bound(table, gram))

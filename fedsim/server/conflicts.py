"""Conflicts and angles between the rows of a step and its direction, from inner products and weights alone.

Table 2 of FedLF (Pan et al. 2024) counts the clients of a step whose update makes an angle above 90 degrees with the
direction: MC for the whole model (`model_conflicts`), LC_l for layer l (`block_conflicts_mean` is their mean).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.server.rule import Direction, Floats, Stack

ORTHOGONAL = 1e-9
"""Cosines above minus this count as no conflict, because projections leave rounding errors."""
_REMOVED = ("projection_removed", "external_removed")
"""Diagnostics of rules and wrappers: shares of the direction's norm that projections removed."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Conflicts of one step, with L blocks and n rows, the first m of them present and the others remembered."""

    m: int
    weights: Floats
    """[L, n] weight of each row in each block; NaN if the rule combines the rows column by column."""
    cosines: Floats
    """[n] cosine between each row and the direction; NaN where one of them is zero."""
    block_cosines: Floats
    """[L, n] the same in each block."""
    conflicting_pairs: int
    """Pairs of present rows with a negative inner product."""
    projection_removed: float
    """Share of the direction's norm that projections removed; NaN if the rule does not report it."""

    def numbers(self) -> dict[str, float]:
        """Return the counts and extremes as columns of `steps.parquet`."""
        present, absent = self.cosines[: self.m], self.cosines[self.m :]
        return {
            "conflicts": float(self.conflicting_pairs),
            "model_conflicts": float((present < -ORTHOGONAL).sum()),
            "block_conflicts_mean": float((self.block_cosines[:, : self.m] < -ORTHOGONAL).sum(axis=1).mean()),
            "absent_conflicts": float((absent < -ORTHOGONAL).sum()),
            "smallest_cosine": _smallest(present),
            "smallest_absent_cosine": _smallest(absent),
            "projection_removed": self.projection_removed,
        }


def diagnose(stack: Stack, direction: Direction, whole: Floats | None = None) -> Diagnosis:
    """Compare `direction` with each row of `stack`, block by block.

    `whole` [n, n] is the Gram matrix of whole rows, if it was computed by itself and weights are the same in all
    blocks; by default it is the sum over blocks. Raises ValueError if the stack has no Gram matrices, or if the
    direction has weights for another number of blocks.
    """
    total, table = stack.gram(), _table(stack, direction.weights)
    inner, squares = _inner(stack.grams, table)
    if whole is None or np.ndim(direction.weights) == 2:
        along, square, whole = inner.sum(axis=0), squares.sum(), total
    else:
        (along,), (square,) = _inner(whole[None], table[:1])
    shares = [direction.diagnostics[name] for name in _REMOVED if name in direction.diagnostics]
    n = stack.remembered.stop  # replaced rows are of clients that are compared already
    return Diagnosis(
        m=stack.m,
        weights=table[:, :n],
        cosines=_cosines(along, square, whole.diagonal())[:n],
        block_cosines=_cosines(inner, squares[:, None], stack.grams.diagonal(axis1=1, axis2=2))[:, :n],
        conflicting_pairs=_conflicting_pairs(whole, stack.m),
        projection_removed=max(shares, default=math.nan),
    )


def diagnose_columns(stack: Stack, weights: Floats, inner: Floats, squares: Floats) -> Diagnosis:
    """Compare a direction that a rule combined column by column with each row of `stack`, block by block.

    `inner` [L, n] are its inner products with the rows, `squares` [L] its squared norms, `weights` [n] those to record.
    """
    whole, row_squares = stack.gram(), stack.grams.diagonal(axis1=1, axis2=2)
    n = stack.remembered.stop
    return Diagnosis(
        m=stack.m,
        weights=_table(stack, weights)[:, :n],
        cosines=_cosines(inner.sum(axis=0), squares.sum(), whole.diagonal())[:n],
        block_cosines=_cosines(inner, squares[:, None], row_squares)[:, :n],
        conflicting_pairs=_conflicting_pairs(whole, stack.m),
        projection_removed=math.nan,
    )


def each_row(stack: Stack, diagnosis: Diagnosis, by_block: bool) -> dict[str, NDArray[Any]]:
    """Return the columns of `conflicts.parquet` except the step: one entry per row for the whole model and, `by_block`,
    for each block after it.

    Block -1 is the whole model; its weight is the largest over all blocks.
    """
    blocks, n = len(stack.grams) if by_block else 0, stack.remembered.stop
    squares = np.concatenate([stack.gram().diagonal()[None], stack.grams.diagonal(axis1=1, axis2=2)[:blocks]])
    weights = np.concatenate([diagnosis.weights.max(axis=0)[None], diagnosis.weights[:blocks]])
    cosines = np.concatenate([diagnosis.cosines[None], diagnosis.block_cosines[:blocks]])
    return {
        "block": np.repeat(np.arange(-1, blocks), n),
        "client": np.tile(stack.clients[:n], blocks + 1),
        "age": np.tile(stack.ages[:n], blocks + 1),
        "weight": weights.ravel(),
        "cosine": cosines.ravel(),
        "norm": np.sqrt(np.maximum(squares[:, :n], 0.0)).ravel(),
    }


def _table(stack: Stack, weights: Floats) -> Floats:
    shape = (len(stack.grams), stack.n)
    table = np.atleast_2d(weights)
    if table.shape not in {shape, (1, stack.n)}:
        raise ValueError(f"expected weights of shape {shape} or {(stack.n,)}, found {weights.shape}")
    return np.array(np.broadcast_to(table, shape))


def _conflicting_pairs(whole: Floats, m: int) -> int:
    return int((np.triu(whole[:m, :m], 1) < 0).sum())


def _inner(grams: Floats, table: Floats) -> tuple[Floats, Floats]:
    """Return in each block the inner products [L, n] of the rows with the direction, and its squared norm [L]."""
    inner = np.einsum("lij,lj->li", grams, table)
    return inner, np.maximum((inner * table).sum(axis=1), 0.0)


def _cosines(inner: Floats, square: Floats, row_squares: Floats) -> Floats:
    scale = np.sqrt(square * np.maximum(row_squares, 0.0))
    return np.divide(inner, scale, out=np.full_like(inner, np.nan), where=scale > 0)


def _smallest(cosines: Floats) -> float:
    known = cosines[~np.isnan(cosines)]
    return float(known.min()) if len(known) else math.nan

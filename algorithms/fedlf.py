"""FedLF: Pan et al. 2024, "FedLF: Layer-Wise Fair Federated Learning" (AAAI), Eq. 5-8.

In each block of parameters the step is the least-norm point of the hull of the clients' gradients, the
gradient g_P of P(w) = -cos(1, F(w)) (Eq. 5, "fair row") and the last gradients of clients absent for at most
τ = M/m steps, M the number of clients seen before. A block whose point is zero joins the next one. The whole
gets the mean's norm.

Deviations and choices:
- The paper's direction has the opposite sign. Updates Δ stand for gradients, as Δ = η g for one full-batch
  step.
- Zero means a norm of at most `zero_tolerance` times the weighted sum of the rows' norms (the paper gives no
  tolerance). The lowest zero block joins the next, the last one the block before it, one at a time.
- With equal losses, one client or zero losses, g_P = 0 and there is no fair row. A client whose whole update
  is zero has no row either, or nobody could move.
- `form="released"` is the authors' public code: every fragment is rescaled to the mean norm of its block, g_P
  is made of the rescaled fragments, nothing is merged, and a direction that conflicts at model level is
  halved while it is over twice as long as before the final rescaling. The code fails on zero fragments: here
  they are left out.
- A block is what the stack holds: a module (weight and bias) as in the paper; the released code splits these
  too.
- `blocks="model"` is the paper's ablation M2, `fair_row=False` M4, `absent="none" | "previous" | "all"` M6,
  M7, M8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from algorithms._qp import Solver, min_norm
from fedsim.stack import Algorithm, Direction, Floats, Needs, Stack, stateless

Absent = Literal["window", "none", "previous", "all"]
Rows = NDArray[np.intp]

_ROUNDING = 64 * float(np.finfo(np.float64).eps)


def fedlf(
    *,
    form: Literal["paper", "released"] = "paper",
    blocks: Literal["layers", "model"] = "layers",
    fair_row: bool = True,
    merging: bool = True,
    absent: Absent = "window",
    zero_tolerance: Annotated[float, Field(ge=0, lt=1)] = 1e-4,
    solver: Solver = "direct",
) -> Algorithm:
    """Descend for every client in every layer, and towards equal losses.

    `merging` and `zero_tolerance` matter in the paper's form only; the released one never merges.
    """

    def direction(stack: Stack) -> Direction:
        grams = stack.grams if blocks == "layers" else stack.gram()[None]
        rows = _considered(stack, absent)
        fair = np.zeros(stack.n)
        if fair_row:
            fair[: stack.m] = fair_weights(stack.losses[: stack.m])
        if form == "released":
            solved = [_solve(g, _equalised(g, rows, fair, stack.m), solver) for g in grams]
        else:
            solved = [_solve(g, _table(rows, fair), solver) for g in grams]
            solved = _merged(solved, _table(rows, fair), zero_tolerance, solver) if merging else solved
        weights = np.stack([block.weights for block in solved for _ in range(block.width)])
        scaled = _rescaled(weights, grams, stack.m)
        if form == "released":
            scaled = _shortened(scaled, weights, grams, rows)
        kkt_residual = max(block.residual for block in solved)
        return Direction(scaled, diagnostics={"kkt_residual": kkt_residual, "blocks": float(len(solved))})

    memory = {"window": math.inf, "none": 0, "previous": 1, "all": math.inf}[absent]
    return stateless(direction, Needs("blocks" if blocks == "layers" else "model", fair_row, memory))


def fair_weights(losses: Floats) -> Floats:
    """Return q `[m]` of Eq. 5, with g_P = Σ q_i g_i; zeros if the losses are equal up to rounding.

    With F = f + e, f the mean, Eq. 5 is q_i = (m f e_i - ‖e‖²) / (√m ‖F‖³), exact for nearly equal losses
    too.
    """
    m, largest = len(losses), float(np.abs(losses).max())
    if largest == 0:
        return np.zeros(m)
    f = losses / largest
    e = f - f.mean()
    norm = float(np.linalg.norm(f))
    if np.linalg.norm(e) <= 1e-12 * norm:
        return np.zeros(m)
    return np.asarray((m * f.mean() * e - e @ e) / (math.sqrt(m) * norm**3 * largest))


def _considered(stack: Stack, absent: Absent) -> Rows:
    """Return the rows of the hull: the present ones and the absent ones young enough, without zero rows."""
    window = stack.n_seen / stack.m if stack.n_seen > stack.m else 0.0
    oldest = {"window": window, "none": 0.0, "previous": 1.0, "all": math.inf}[absent]
    return np.flatnonzero((stack.ages <= oldest) & (stack.gram().diagonal() > 0))


def _table(rows: Rows, fair: Floats) -> Floats:
    """Return the points of the hull `[R, n]` as coefficients over the rows."""
    table = np.eye(len(fair))[rows]
    return np.vstack([table, fair]) if fair.any() else table


@dataclass(frozen=True, slots=True)
class _Solved:
    """The least-norm point of one block, or of `width` neighbouring ones, as weights `[n]` over the rows."""

    gram: Floats
    weights: Floats
    residual: float
    width: int = 1


def _solve(gram: Floats, table: Floats, solver: Solver, width: int = 1) -> _Solved:
    """Solve Eq. 6-8 for one block; without any point the block stays where it is."""
    if not len(table):
        return _Solved(gram, np.zeros(len(gram)), 0.0, width)
    weights, residual = min_norm(table @ gram @ table.T, solver=solver)
    return _Solved(gram, weights @ table, residual, width)


def _merged(solved: list[_Solved], table: Floats, tolerance: float, solver: Solver) -> list[_Solved]:
    while len(solved) > 1:
        zero = next((i for i, block in enumerate(solved) if _is_zero(block, tolerance)), None)
        if zero is None:
            break
        a = min(zero, len(solved) - 2)
        one, two = solved[a : a + 2]
        joined = _solve(one.gram + two.gram, table, solver, one.width + two.width)
        solved = [*solved[:a], joined, *solved[a + 2 :]]
    return solved


def _is_zero(block: _Solved, tolerance: float) -> bool:
    size = np.abs(block.weights) @ np.sqrt(block.gram.diagonal())
    square = block.weights @ block.gram @ block.weights
    return bool(square <= max(tolerance**2, _ROUNDING) * size**2)


def _norm(weights: Floats, grams: Floats) -> float:
    return math.sqrt(max(float(sum(w @ g @ w for w, g in zip(weights, grams, strict=True))), 0.0))


def _rescaled(weights: Floats, grams: Floats, m: int) -> Floats:
    """Return the weights `[L, n]` of the same direction with the norm of the mean of the first `m` rows."""
    norm = _norm(weights, grams)
    size = np.linalg.norm((np.abs(weights) * np.sqrt(grams.diagonal(axis1=1, axis2=2))).sum(axis=1))
    if norm <= math.sqrt(_ROUNDING) * size:
        return np.zeros_like(weights)
    mean = np.zeros_like(weights)
    mean[:, :m] = 1 / m
    return np.asarray(weights * (_norm(mean, grams) / norm))


def _equalised(gram: Floats, rows: Rows, fair: Floats, m: int) -> Floats:
    """Return the released code's points of a block, all of the mean norm of the present fragments."""
    norms = np.sqrt(gram.diagonal())
    scale = np.divide(norms[:m].mean(), norms, out=np.zeros_like(norms), where=norms > 0)
    q = fair * scale
    norm = _norm(q[None], gram[None])
    vanishes = norm <= math.sqrt(_ROUNDING) * (np.abs(q) @ norms)
    q = np.zeros_like(q) if vanishes else q * (norms[:m].mean() / norm)
    points = (np.eye(len(q)) * scale)[rows[norms[rows] > 0]]
    return np.vstack([points, q]) if q.any() else points


def _shortened(scaled: Floats, unscaled: Floats, grams: Floats, rows: Rows) -> Floats:
    shortest = 2 * _norm(unscaled, grams)
    while (np.einsum("lij,lj->i", grams, scaled)[rows] < -1e-6).any():
        if _norm(scaled, grams) <= shortest:
            return unscaled
        scaled = scaled / 2
    return scaled

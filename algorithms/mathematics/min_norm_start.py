"""A first solution for the point of least norm of a whole convex hull, from its Gram matrix alone.

Exact reduction to non-negative least squares: minimise ½ ‖Σ x_i v_i‖² + ½ (Σ x_i - 1)² over x >= 0, then λ = x / Σ x.
With H = G + 11ᵀ its solution has Hx = 1 where x > 0 and Hx >= 1 elsewhere. The same holds for G + s 11ᵀ with any s > 0,
and for any units of the rows: where norms differ by orders of magnitude, so that G + 11ᵀ has nothing left of the
shortest row, vectors of norm 1 and s = min G_ii have it all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.optimize import nnls

from fedsim.server.rule import Floats

_MANY = 64
"""Fewest rows for which pivoting is faster than adding rows one by one."""
_WIDE = 1e-8
"""Ratio of squared norms below which rows are scaled to norm 1."""
_RIDGE = 1e-12
_PIVOTS = 100
_PATIENCE = 3


def unbounded(g: Floats) -> Floats:
    """Return the weights `[n]` of the point of least norm, or zeros if the methods fail."""
    squares = g.diagonal()
    if 0 < squares.min() < _WIDE * squares.max():
        x = scaled(g)
    else:
        x = pivoted(g + 1.0, np.ones(len(g))) if len(g) >= _MANY else None
    return one_by_one(g) if x is None else x


def scaled(g: Floats) -> Floats | None:
    """Solve by `pivoted` for rows of norm 1, none of them zero; also where some depend on others, but for rounding."""
    norms = np.sqrt(g.diagonal())
    goal = norms.min() / norms
    x = pivoted(g / np.outer(norms, norms) + np.outer(goal, goal) + _RIDGE * np.eye(len(g)), goal)
    if x is None:
        return None
    x /= norms
    return np.asarray(x / x.sum())


def one_by_one(g: Floats) -> Floats:
    """Solve by Lawson and Hanson 1974, "Solving Least Squares Problems", chapter 23; `g` may be singular."""
    factor, pivots, rank, _ = lapack.dpstrf(g)
    a = np.ones((rank + 1, len(g)))
    a[:rank, pivots - 1] = np.triu(factor[:rank])
    b = np.zeros(rank + 1)
    b[-1] = 1.0
    try:
        x = nnls(a, b)[0]
    except RuntimeError:  # out of iterations; the active-set method needs no good start
        x = np.zeros(len(g))
    return np.asarray(x / x.sum()) if x.any() else x


def pivoted(h: Floats, goal: Floats) -> Floats | None:
    """Return x >= 0 of sum 1, up to a factor with Hx = goal where x > 0 and Hx >= goal elsewhere, for goal > 0.

    By block principal pivoting (Júdice and Pires 1994; Kim and Park 2011), from all rows down: all rows on the wrong
    side change sides at once, as long as they get fewer, then only the last one of them. Takes a few factorisations,
    however many rows have weight. None where `h` is singular or rows keep changing sides.
    """
    free = np.ones(len(h), dtype=np.bool_)
    fewest, patience = len(h) + 1, _PATIENCE
    for _ in range(_PIVOTS):
        x = _optimum(h, goal, np.flatnonzero(free))
        if x is None:
            return None
        wrong = np.where(free, x < 0, h @ x < goal * (1 - 1e-12))
        count = int(wrong.sum())
        if not count:
            return np.asarray(x / x.sum())
        if count < fewest:
            fewest, patience = count, _PATIENCE
        elif patience:
            patience -= 1
        else:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        free ^= wrong
    return None


def _optimum(h: Floats, goal: Floats, rows: NDArray[np.intp]) -> Floats | None:
    """Solve Hx = goal for the `rows`, x = 0 elsewhere; None if the matrix is singular within rounding."""
    factor, info = lapack.dpotrf(h if len(rows) == len(h) else h[np.ix_(rows, rows)])
    x = np.zeros(len(h))
    if not info:
        x[rows] = lapack.dpotrs(factor, goal[rows])[0]
    return x if x.sum() > 0 else None

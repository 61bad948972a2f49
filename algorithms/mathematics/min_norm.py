"""The point of least norm in a convex hull: the quadratic program behind FedMGDA+, FedMDFG and FedLF.

Given the Gram matrix G of some vectors v_i, find weights minimising ½ λᵀGλ = ½ ‖Σ λ_i v_i‖² over the simplex,
or over the part of it within bounds. G may be singular: equal rows, opposite rows, zero rows, more rows than
dimensions. The norm is then still unique, the weights need not be.

The direct method starts from the solution without bounds (`min_norm_start`) and finishes with a primal active-set
method on G itself (Wolfe 1976, "Finding the nearest point in a polytope", with bounds), whose steps are
refined to rounding. It starts cold each time: the weights depend on G and the bounds alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import ThreadpoolController

from fedsim.common.errors import SolverError
from fedsim.server.rule import Floats

Solver = Literal["direct", "cvxpy"]


class Solution(NamedTuple):
    """The weights of the point of least norm, and how well they solve the problem."""

    weights: Floats
    """[n]"""
    residual: float
    """KKT residual."""


TOLERANCE = {"direct": 1e-10, "cvxpy": 1e-7}
"""Largest accepted KKT residual, relative to the largest diagonal entry of the Gram matrix."""

INDEFINITE = 1e-4
"""Largest negative eigenvalue taken for rounding, relative to the largest diagonal entry."""

_EPS = float(np.finfo(np.float64).eps)


def min_norm(
    gram: Floats, *, lower: ArrayLike | None = None, upper: ArrayLike | None = None, solver: Solver = "direct"
) -> Solution:
    """Return weights `[n]` of the point of least norm, and the KKT residual of the solution.

    `gram` is `[n, n]`; `lower` (at least 0) and `upper` bound each weight, as numbers or `[n]`. The residual
    is the largest of d·d - min_w Σ w_i v_i·d over the feasible weights w, the amounts by which bounds are
    missed, and |Σ λ_i - 1|, after dividing G by its largest diagonal entry. `solver="cvxpy"` is the
    interior-point reference. A matrix that rounding made indefinite, so much that the residual is too large,
    is replaced by the nearest Gram matrix, to which the residual then refers.

    Raises SolverError, which carries `gram`, if it is no Gram matrix, no weights within the bounds sum to
    one, or the residual exceeds `TOLERANCE`.
    """
    g = _normalised(gram)
    low, high = _bounds(gram, lower, upper)
    solve = _interior_point if solver == "cvxpy" else _active_set
    with _blas().limit(limits=1):
        x = solve(g, low, high)
        residual = _residual(g, x, low, high)
        if not residual <= TOLERANCE[solver]:
            g = _nearest_gram(g, gram)
            x = solve(g, low, high)
            residual = _residual(g, x, low, high)
    if not residual <= TOLERANCE[solver]:
        raise SolverError(
            f"minimum-norm problem of {len(x)} rows: KKT residual {residual:.1e}, expected at most "
            f"{TOLERANCE[solver]:.0e} with solver {solver!r}",
            gram,
        )
    return Solution(x, residual)


def _normalised(gram: Floats) -> Floats:
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not len(gram):
        raise SolverError(f"expected a square Gram matrix, found shape {gram.shape}", gram)
    if not np.isfinite(gram).all():
        row = int(np.flatnonzero(~np.isfinite(gram).all(axis=1))[0])
        raise SolverError(f"expected a finite Gram matrix, found NaN or infinity in row {row}", gram)
    diagonal = gram.diagonal()
    if diagonal.min() < 0:
        raise SolverError(f"expected squared norms on the diagonal, found {diagonal.min():.3g}", gram)
    g = gram / (diagonal.max() or 1.0)
    return np.asarray((g + g.T) / 2)


def _bounds(gram: Floats, lower: ArrayLike | None, upper: ArrayLike | None) -> tuple[Floats, Floats]:
    if lower is None and upper is None:
        return np.zeros(len(gram)), np.full(len(gram), np.inf)
    low = np.broadcast_to(np.asarray(0.0 if lower is None else lower, dtype=np.float64), len(gram))
    high = np.broadcast_to(np.asarray(np.inf if upper is None else upper, dtype=np.float64), len(gram))
    slack = 8 * _EPS
    if not ((low >= 0).all() and (low <= high).all() and low.sum() <= 1 + slack and high.sum() >= 1 - slack):
        raise SolverError(
            f"expected bounds 0 <= lower <= upper that allow weights of sum 1, found lower bounds of sum "
            f"{low.sum():.17g} and upper bounds of sum {high.sum():.17g}",
            gram,
        )
    return low, high


def _nearest_gram(g: Floats, gram: Floats) -> Floats:
    """Set negative eigenvalues to zero; inner products that were summed in float32 cause small ones."""
    values, vectors = np.linalg.eigh(g)
    if values[0] < -INDEFINITE:
        raise SolverError(f"expected a Gram matrix, found a relative eigenvalue of {values[0]:.2g}", gram)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(root @ root.T)


def _active_set(g: Floats, low: Floats, high: Floats) -> Floats:
    return _descend(g, _start(g, low, high), low, high)


def _start(g: Floats, low: Floats, high: Floats) -> Floats:
    """Return feasible weights; without active bounds mostly the solution itself."""
    # imported here: it imports SciPy, which is slow
    from fedsim.algorithms.mathematics.min_norm_start import unbounded

    x = unbounded(g)
    return x if x.any() and ((low <= x) & (x <= high)).all() else _filled(g.diagonal(), low, high)


def _filled(cost: Floats, low: Floats, high: Floats) -> Floats:
    """Return the feasible weights of least total cost: the cheapest rows get as much as they may."""
    order = np.argsort(cost, kind="stable")
    room = np.minimum(high, 1.0)[order] - low[order]
    x = low.copy()
    x[order] += np.clip(1.0 - low.sum() - (np.cumsum(room) - room), 0.0, room)
    return x


def _descend(g: Floats, x: Floats, low: Floats, high: Floats) -> Floats:
    """Run the active-set method: solve on the free weights, fix one at its bound, free one that helps."""
    magnitudes = np.abs(g)
    free = (x > low) & (x < high)
    seen: set[bytes] = set()
    for _ in range(20 * len(x) + 20):
        x, blocked = _step(g, x, free, low, high)
        if blocked >= 0:
            free[blocked] = False
            continue
        entering = _entering(g @ x, magnitudes @ x, x, free, low, high)
        pattern = free.tobytes() + (x > low).tobytes()
        if not len(entering) or pattern in seen:  # a repeated pattern: only rounding is left to gain
            break
        seen.add(pattern)
        free[entering] = True
    return x


def _step(g: Floats, x: Floats, free: NDArray[np.bool_], low: Floats, high: Floats) -> tuple[Floats, int]:
    """Move to the optimum of the free weights, or to the first bound; also return the weight at that bound, or -1."""
    f = np.flatnonzero(free)
    if len(f) < 2:
        return x, -1
    p = _move(g[f] @ x, g[f][:, f])
    room = np.where(p < 0, low[f] - x[f], high[f] - x[f])
    with np.errstate(over="ignore"):  # a tiny move meets no bound
        steps = np.divide(room, p, out=np.full(len(f), np.inf), where=p != 0)
    k = int(np.argmin(steps))
    x = x.copy()
    x[f] = np.clip(x[f] + min(1.0, steps[k]) * p, low[f], high[f])
    if steps[k] > 1.0:
        return x, -1
    x[f[k]] = low[f[k]] if p[k] < 0 else high[f[k]]
    return x, int(f[k])


def _move(r: Floats, sub: Floats) -> Floats:
    """Solve min ½ pᵀGp + rᵀp with Σ p_i = 0 for the block `sub` of G, then correct the solution once."""
    solve = _factorised(sub + 1.0)
    u = solve(np.ones(len(r)))
    p = np.zeros(len(r))
    if not u.sum() > 0:  # G is indefinite: do not move; the residual reports it
        return p
    for _ in range(2):
        e = r + sub @ p
        y = solve(e.sum() / len(e) - e)
        p += y - (y.sum() / u.sum()) * u
    return p


@cache
def _blas() -> ThreadpoolController:
    """Control the BLAS libraries: one thread per solve. A second thread makes the many small products of an active-set
    method five times slower, and the last bits of the weights must not depend on the number of cores.
    """
    importlib.import_module("scipy.linalg")  # loads another BLAS, which must be controlled too
    return ThreadpoolController()


def _factorised(h: Floats) -> Callable[[Floats], Floats]:
    """Return the solution map of `h`, positive semi-definite; the one of least norm where `h` is singular."""
    from scipy.linalg import lapack

    c, info = lapack.dpotrf(h)
    if info == 0 and c.diagonal().min() ** 2 > 1e-13 * h.diagonal().max():
        return lambda b: np.asarray(lapack.dpotrs(c, b)[0])
    values, vectors = np.linalg.eigh(h)
    kept = values > 1e-13 * values[-1]
    return lambda b: np.asarray(vectors[:, kept] @ ((vectors[:, kept].T @ b) / values[kept]))


def _entering(
    r: Floats, rounding: Floats, x: Floats, free: NDArray[np.bool_], low: Floats, high: Floats
) -> NDArray[np.intp]:
    """Return the fixed weights to free: the worst violation of optimality, beyond the rounding of `r` = Gλ.

    `rounding` is |G| λ. Where no weight is free, a pair is freed: the cheapest to raise, the dearest to
    lower.
    """
    if not free.any():
        up, down = np.where(x < high, r, np.inf), np.where(x > low, r, -np.inf)
        j, k = int(np.argmin(up)), int(np.argmax(down))
        return np.array([j, k] if down[k] - up[j] > 8 * _EPS * rounding.max() else [], dtype=np.intp)
    level = float(r[free].mean())
    gain = np.where(x <= low, level - r, r - level) - 8 * _EPS * (rounding + rounding[free].max())
    gain[free | (low >= high)] = -np.inf
    j = int(np.argmax(gain))
    return np.array([j] if gain[j] > 0 else [], dtype=np.intp)


def _residual(g: Floats, x: Floats, low: Floats, high: Floats) -> float:
    r = g @ x
    best = r.min() if not low.any() and high.min() >= 1 else r @ _filled(r, low, high)
    return float(max(x @ r - best, abs(x.sum() - 1.0), (low - x).max(), (x - high).max(), 0.0))


def _interior_point(g: Floats, low: Floats, high: Floats) -> Floats:
    cp: Any = importlib.import_module("cvxpy")  # slow, so imported only when it is used

    values, vectors = np.linalg.eigh(g)
    factor = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    x = cp.Variable(len(g))
    bounds = [x >= low, *([x <= high] if np.isfinite(high).all() else [])]
    problem = cp.Problem(cp.Minimize(cp.sum_squares(factor @ x)), [cp.sum(x) == 1, *bounds])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    if x.value is None:
        raise SolverError(f"Clarabel found no solution of {len(g)} rows: {problem.status}", g)
    return np.asarray(np.clip(x.value, low, high), dtype=np.float64)

"""The least-norm point of a hull of updates and of a fairness row: what the rules of the MGDA family share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.algorithms.mathematics.geometry import inverse_norms, mean_length, of_length
from fedsim.algorithms.mathematics.min_norm import Solution, Solver, min_norm
from fedsim.algorithms.mathematics.rows import over_present
from fedsim.server.rule import Direction, Floats, Stack

Lambda0 = Literal["uniform", "samples"]
Rows = NDArray[np.intp]
"""Positions of rows in a stack."""


@dataclass(frozen=True, slots=True)
class Hull:
    """The convex hull of some rows, each times its `scale`, and of one mixture of rows unless that is zero."""

    rows: Rows
    scale: Floats
    """[n] factor of each row of the stack."""
    fair: Floats
    """[n] weights of the mixture over the rows of the stack."""

    def least(self, gram: Floats, solver: Solver) -> Solution:
        """Return the weights `[n]` of the least-norm point and the KKT residual; zeros if the hull is empty."""
        weights = np.zeros(len(gram))
        guided = bool(self.fair.any())
        if not len(self.rows) and not guided:
            return Solution(weights, 0.0)
        mixture, residual = min_norm(self._products(gram, guided), solver=solver)
        weights[self.rows] = mixture[: len(self.rows)] * self.scale[self.rows]
        return Solution(weights + mixture[-1] * self.fair if guided else weights, residual)

    def equalised(self, gram: Floats, m: int, negligible: float) -> Hull:
        """Return the hull with all its points scaled to the mean length of the first `m` rows, short rows left out.

        Rows are short if they are no longer than the share `negligible` of that length. A mixture whose norm is
        rounding becomes zero.
        """
        length, fair = mean_length(gram, m), self.fair
        if (largest := np.abs(fair).max()) > 0:
            fair = of_length(fair[None] / largest, gram[None], length)[0]
        return Hull(longer(gram, self.rows, m, negligible), inverse_norms(gram) * length, fair)

    def _products(self, gram: Floats, guided: bool) -> Floats:
        """Return the inner products of the hull's points; whole products of matrices would be far slower."""
        k, scale = len(self.rows), self.scale[self.rows]
        products = np.empty((k + guided, k + guided))
        products[:k, :k] = gram[np.ix_(self.rows, self.rows)] * np.outer(scale, scale)
        if guided:
            inner = gram @ self.fair
            products[:k, k] = products[k, :k] = scale * inner[self.rows]
            products[k, k] = max(float(self.fair @ inner), 0.0)
        return products


def longer(gram: Floats, rows: Rows, m: int, share: float) -> Rows:
    """Return those of `rows` that are longer than a share of the mean length of the first `m` rows, and not zero."""
    return np.asarray(rows[np.sqrt(gram.diagonal())[rows] > share * mean_length(gram, m)])


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds on the weights of a mixture: within `epsilon` of λ⁰, or at most `cap`.

    A cap that is too small for weights of sum one makes them equal.
    """

    lambda0: Lambda0 = "uniform"
    epsilon: float = 1.0
    cap: float | None = None


def mixed(stack: Stack, bounds: Bounds, *, normalise: bool, step: float, solver: Solver) -> Direction:
    """Return `step` times the least-norm mixture of the present rows within `bounds`.

    With `normalise`, rows have norm 1, zero rows take no part, and λ⁰ is divided among the others. Without it a zero
    row is a point of the hull: with epsilon = 1 the direction is then zero.
    """
    gram = stack.gram()[: stack.m, : stack.m]
    scale = inverse_norms(gram) if normalise else np.ones(stack.m)
    used = np.flatnonzero(scale)
    if not len(used):
        return Direction(np.zeros(stack.n))
    unit = gram[np.ix_(used, used)] * np.outer(scale[used], scale[used])
    if bounds.cap is None:
        centre = _centre(stack, bounds.lambda0)[used]
        mixture, residual = _near(unit, centre / centre.sum(), bounds.epsilon, solver)
    else:
        mixture, residual = min_norm(unit, upper=max(bounds.cap, 1 / len(used)), solver=solver)
    weights = np.zeros(stack.m)
    weights[used] = step * mixture * scale[used]
    return Direction(over_present(stack, weights), diagnostics={"kkt_residual": residual})


def _near(gram: Floats, centre: Floats, epsilon: float, solver: Solver) -> Solution:
    if epsilon == 0:
        return Solution(centre, 0.0)
    if epsilon >= 1:
        return min_norm(gram, solver=solver)
    return min_norm(
        gram, lower=np.maximum(centre - epsilon, 0), upper=np.minimum(centre + epsilon, 1), solver=solver
    )


def _centre(stack: Stack, lambda0: Lambda0) -> Floats:
    if lambda0 == "uniform":
        return np.full(stack.m, 1 / stack.m)
    n_samples = stack.n_samples[: stack.m].astype(np.float64)
    return np.asarray(n_samples / n_samples.sum())

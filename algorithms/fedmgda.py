"""FedMGDA: Hu et al. 2022, "Federated Learning Meets Multi-objective Optimization" (IEEE TNSE), without the plus.

The step is the least-norm point of the convex hull of the updates: w <- w - Σ λ_i Δ_i, λ = argmin ‖Σ λ_i Δ_i‖
over the simplex. It is a descent direction for every client of the step, or zero.

Choices: λ is exact (see `mathematics/min_norm.py`). A zero update is the least-norm point of the hull: the model stays.
"""

from __future__ import annotations

from fedsim.algorithms.mathematics.hull import Bounds, mixed
from fedsim.algorithms.mathematics.min_norm import Solver
from fedsim.server.rule import Algorithm, Direction, Needs, Stack, stateless


def fedmgda(*, solver: Solver = "direct") -> Algorithm:
    """Take the least-norm mixture of the updates: no present client's loss rises, to first order.

    Args:
        solver: of the least-norm problem: "direct", an active-set method; "cvxpy", Clarabel, a slow reference.
    """

    def direction(stack: Stack) -> Direction:
        return mixed(stack, Bounds(), normalise=False, step=1.0, solver=solver)

    return stateless(direction, Needs(gram="model"), ["convex", "descent"])

"""FedMGDA+: Hu et al. 2022, "Federated Learning Meets Multi-objective Optimization" (IEEE TNSE), Algorithm 1.

With unit updates ĝ_i = Δ_i / ‖Δ_i‖: w <- w - η_t Σ λ_i ĝ_i, λ = argmin ‖Σ λ_i ĝ_i‖ over the λ of the simplex
with |λ_i - λ⁰_i| <= ε; η_t = η β^⌊t/100⌋.

Deviations and choices:
- λ⁰ is uniform, as in the authors' code; `lambda0="samples"` is n_i / Σ n, as in other platforms.
- η is the server's own: a unit update has lost the clients' learning rate (other platforms multiply by it).
- λ is exact, also for singular Gram matrices, which the authors' solver refuses.
- A zero update takes no part (the authors divide by zero); λ⁰ is divided among the others.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from algorithms._hull import Lambda0, mixed
from algorithms._qp import Solver
from fedsim.stack import Algorithm, Direction, Needs, Stack, stateless


def fedmgda_plus(
    *,
    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.1,
    lambda0: Lambda0 = "uniform",
    normalise: bool = True,
    server_lr: Annotated[float, Field(gt=0)] = 1.0,
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0,
    solver: Solver = "direct",
) -> Algorithm:
    """Mix unit updates to the least norm, with weights that stay within `epsilon` of `lambda0`.

    `server_lr` is η, the length scale of the step; `decay` is β, its factor per 100 steps.
    """

    def direction(stack: Stack) -> Direction:
        step = server_lr * decay ** (stack.step // 100)
        return mixed(stack, normalise=normalise, lambda0=lambda0, epsilon=epsilon, step=step, solver=solver)

    needs = Needs(gram="model", scale_free=normalise)
    return stateless(direction, needs, ["descent"] if epsilon == 1 else [])

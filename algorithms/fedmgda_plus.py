"""FedMGDA+: Hu et al. 2022, "Federated Learning Meets Multi-objective Optimization" (IEEE TNSE), Algorithm 1.

With unit updates ĝ_i = Δ_i / ‖Δ_i‖: w <- w - η_t Σ λ_i ĝ_i, λ = argmin ‖Σ λ_i ĝ_i‖ over the λ of the simplex
with |λ_i - λ⁰_i| <= ε; η_t = η β^⌊t/100⌋.

Deviations and choices:
- λ⁰ is uniform, as in the authors' code; `lambda0="samples"` is n_i / Σ n, as in other platforms.
- η is the server's own: a unit update has lost the clients' learning rate. `server_lr="clients"` takes that rate with
  its decay, as other platforms do, `"median"` the median norm of the step's updates, an option of the authors' code.
- `cap` is another option of that code: instead of the box around λ⁰ no weight above it, or equal weights where it is
  below 1/m.
- λ is exact, also for singular Gram matrices, which the authors' solver refuses.
- A zero update takes no part (the authors divide by zero); λ⁰ is divided among the others.
"""

from __future__ import annotations

from typing import Annotated, Literal, cast

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.geometry import row_norms
from fedsim.algorithms.mathematics.hull import Bounds, Lambda0, mixed
from fedsim.algorithms.mathematics.min_norm import Solver
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import With
from fedsim.server.rule import Algorithm, Direction, Needs, Stack, stateless


def fedmgda_plus(
    *,
    epsilon: Annotated[float, Field(ge=0, le=1), With("cap", None)] = 0.1,
    lambda0: Annotated[Lambda0, With("cap", None)] = "uniform",
    cap: Annotated[float, Field(gt=0, le=1)] | None = None,
    normalise: bool = True,
    server_lr: Annotated[float, Field(gt=0)] | Literal["median", "clients"] = 1.0,
    lr: Annotated[float | None, Field(gt=0), With("server_lr", "clients")] = None,
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0,
    solver: Solver = "direct",
) -> Algorithm:
    """Mix unit updates to the least norm, with weights that stay within `epsilon` of `lambda0`, or below `cap`.

    Args:
        epsilon: ε, how far each weight λ_i may be from λ⁰_i; 0 fixes the weights at λ⁰, 1 leaves the simplex as the
            only bound.
        lambda0: λ⁰, the centre of the weights: "uniform", equal weights; "samples", the shares n_i / Σ n of the
            training samples of the step's clients.
        cap: the largest weight of an update, in place of the bounds around λ⁰; below 1/m it makes the weights equal.
            Without it, `epsilon` and `lambda0` bound the weights.
        normalise: whether updates are divided by their norms, ĝ_i = Δ_i / ‖Δ_i‖; if not, the rule mixes the Δ_i
            themselves.
        server_lr: η, which multiplies the mixture: a number; "median", the median norm of the step's updates;
            "clients", the clients' learning rate with its decay.
        lr: the clients' learning rate; in a run that of `[train]` by default.
        decay: β, the factor on η after every 100 steps; 1 for no decay.
        solver: of the least-norm problem: "direct", an active-set method; "cvxpy", Clarabel, a slow reference.
    """
    if server_lr == "clients" and lr is None:
        raise ConfigError(
            "lr: needed with server_lr = 'clients': expected the clients' learning rate, found none"
        )
    bounds = Bounds(lambda0, epsilon, cap)

    def length(stack: Stack) -> float:
        if server_lr == "median":
            return float(np.median(row_norms(stack.gram())[: stack.m]))
        return cast(float, lr) * stack.lr_decay**stack.step if server_lr == "clients" else server_lr

    def direction(stack: Stack) -> Direction:
        step = length(stack) * decay ** (stack.step // 100)
        return mixed(stack, bounds, normalise=normalise, step=step, solver=solver)

    needs = Needs(gram="model", scale_free=normalise)
    return stateless(direction, needs, ["descent"] if epsilon == 1 and cap is None else [])

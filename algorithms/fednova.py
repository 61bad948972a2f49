"""FedNova: Wang et al. 2020, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization"
(NeurIPS), Equation 7.

    w <- w - τ_eff Σ_S p_k Δ_k / ‖a_k‖₁,    τ_eff = Σ_S p_k ‖a_k‖₁

with p_k the client's share of the present clients' samples, and ‖a_k‖₁ the weight of its τ_k local steps in Δ_k:

- SGD: τ_k.
- Momentum ρ: (τ_k - ρ (1 - ρ^τ_k) / (1 - ρ)) / (1 - ρ).
- A proximal term μ, as in the client method `fedprox`: (1 - (1 - ημ)^τ_k) / (ημ), and τ_eff = Σ_S p_k τ_k.

So a client that did more local steps, because of `cost.completeness`, `dropout.partial` or more samples, does not pull
the model towards its own optimum.

Deviations and choices: with momentum and a proximal term the authors' code adds the terms of both; here one of them
must be 0. The server's momentum of the paper is the wrapper `server_opt`. A client with several updates in a step
counts with each of them.
"""

from __future__ import annotations

from typing import Annotated, cast

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.rows import over_present
from fedsim.common.errors import ConfigError, RunError
from fedsim.common.option_requirements import Unless
from fedsim.server.rule import Algorithm, Direction, Floats, Stack, stateless


def fednova(
    *,
    momentum: Annotated[float | None, Field(ge=0, lt=1)] = None,
    mu: Annotated[float, Field(ge=0)] = 0.0,
    lr: Annotated[float | None, Field(gt=0), Unless("mu", 0)] = None,
) -> Algorithm:
    """Divide each update by the weight of its local steps, and take steps of the mean weight.

    Args:
        momentum: ρ, the clients' momentum; in a run that of `[train]` by default, outside of one none. It must be 0
            beside `mu`.
        mu: μ, the strength of the clients' proximal term, that of the client method `fedprox`; 0 if they have none.
            Above 0 it needs `lr`.
        lr: η, the clients' learning rate; in a run that of `[train]` by default.
    """
    if momentum and mu:
        raise ConfigError(f"mu: expected 0 with momentum {momentum:g}, found {mu:g}")
    if mu and lr is None:
        raise ConfigError("lr: needed with mu: expected the clients' learning rate, found none")

    def weigh(stack: Stack) -> Direction:
        tau = _local_steps(stack)
        shares = stack.n_samples[: stack.m] / stack.n_samples[: stack.m].sum()
        if not mu:
            weight = weight_of_steps(tau, momentum or 0.0)
            return Direction(over_present(stack, (shares @ weight) * shares / weight))
        pull = mu * stack.rates(cast(float, lr))[: stack.m]
        weight = (1 - (1 - pull) ** tau) / pull
        return Direction(over_present(stack, (shares @ tau) * shares / weight))

    return stateless(weigh)


def _local_steps(stack: Stack) -> Floats:
    """Return τ [m] of the present rows. Raises RunError where it is not known."""
    if stack.local_steps is None:
        raise RunError(f"step {stack.step}: local_steps: expected the clients' local steps, found none")
    return stack.local_steps[: stack.m].astype(np.float64)


def weight_of_steps(tau: Floats, momentum: float) -> Floats:
    """Return ‖a‖₁ of `tau` [m] steps of SGD with heavy-ball momentum: how often each gradient counts, added up."""
    return np.asarray((tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum))

"""q-FedSGD: Li et al. 2020, "Fair Resource Allocation in Federated Learning" (ICLR), Algorithm 1.

With g_k = ∇F_k(w) = Δ_k / η: D_k = F_k^q g_k, h_k = q F_k^(q-1) ‖g_k‖² + L F_k^q, w <- w - Σ D_k / Σ h_k.

Deviations and choices:
- Rows must be single full-batch steps of learning rate η: one epoch, the full batch, no momentum. Other training is
  refused.
- L = 1/η unless the option `L` sets it; without it the rule equals q-FedAvg on the same rows. η is the clients'
  learning rate at the step whose model a row started from.
- `guard` is added to the losses (1e-10 in the authors' code). A loss below 0, which only an attacker reports, counts
  as 0.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.qffl import rates_of
from fedsim.algorithms.mathematics.rows import over_present
from fedsim.algorithms.qfedavg import step_weights
from fedsim.server.rule import Algorithm, Direction, Needs, Stack, stateless


def qfedsgd(
    *,
    q: Annotated[float, Field(ge=0)] = 1.0,
    lr: Annotated[float, Field(gt=0)] | None = None,
    L: Annotated[float, Field(gt=0)] | None = None,
    guard: Annotated[float, Field(gt=0)] = 1e-10,
) -> Algorithm:
    """Give clients of large loss a larger weight in one gradient step, the more the larger `q` is.

    One of `lr` and `L` is needed.

    Args:
        q: the power q of the losses F_k in the weights; 0 weights all gradients alike.
        lr: η, the learning rate of the clients' step, with which g_k = Δ_k / η; in a run that of `[train]` by default.
            Without it η is 1/L.
        L: the Lipschitz constant L of the gradients. Without it L is 1/lr.
        guard: a small number added to each F_k before it is raised to a power, so that losses of 0 cause no division by
            zero.
    """
    rates = rates_of("qfedsgd", lr, L)

    def weigh(stack: Stack) -> Direction:
        eta, lipschitz = rates(stack)
        losses = np.maximum(stack.losses[: stack.m], 0.0) + guard
        squares = stack.gram().diagonal()[: stack.m]
        return Direction(over_present(stack, step_weights(losses, squares, q, lipschitz, 1 / eta)))

    return stateless(weigh, Needs(gram="model", losses=True, gradients=True))

"""q-FedAvg: Li et al. 2020, "Fair Resource Allocation in Federated Learning" (ICLR), Algorithm 2.

With δ_k = L Δ_k: D_k = F_k^q δ_k, h_k = q F_k^(q-1) ‖δ_k‖² + L F_k^q, w <- w - Σ D_k / Σ h_k. Losses are
those at the received model, before training.

Deviations and choices:
- L = 1/η, with η the clients' learning rate, which may decay from step to step, unless `L` is given. An update that
  started from an older model has the η of then.
- `guard` is added to the losses (1e-10 in the authors' code). A loss below 0, which only an attacker reports, counts
  as 0.
- Clients should be drawn with probability p_k: the sums are not weighted by data.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.qffl import step_size, step_weights
from fedsim.algorithms.mathematics.rows import over_present
from fedsim.common.option_requirements import With
from fedsim.server.rule import Algorithm, Direction, Needs, Stack, stateless


def qfedavg(
    *,
    q: Annotated[float, Field(ge=0)] = 1.0,
    lr: Annotated[float | None, Field(gt=0), With("L", None)] = None,
    L: Annotated[float, Field(gt=0)] | None = None,
    guard: Annotated[float, Field(gt=0)] = 1e-10,
) -> Algorithm:
    """Give clients of large loss a larger say, the more the larger `q` is; q = 0 is the plain mean.

    `lr` is the clients' learning rate, `L` the Lipschitz constant, 1/lr by default; one of them is needed.
    """
    rates = step_size("qfedavg", lr, L)

    def direction(stack: Stack) -> Direction:
        _, lipschitz = rates(stack)
        losses = np.maximum(stack.losses[: stack.m], 0.0) + guard
        squares = stack.gram().diagonal()[: stack.m]
        return Direction(over_present(stack, step_weights(losses, squares, q, lipschitz, lipschitz)))

    return stateless(direction, Needs(gram="model", losses=True))

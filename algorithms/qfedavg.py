"""q-FedAvg: Li et al. 2020, "Fair Resource Allocation in Federated Learning" (ICLR), Algorithm 2.

With δ_k = L Δ_k and F_k the loss at the received model, before training:

    D_k = F_k^q δ_k
    h_k = q F_k^(q-1) ‖δ_k‖² + L F_k^q

and w <- w - Σ D_k / Σ h_k.

Deviations and choices:
- L = 1/η unless the option `L` sets it. η is the clients' learning rate at the step whose model an update started from.
- `guard` is added to the losses (1e-10 in the authors' code). A loss below 0, which only an attacker reports, counts
  as 0.
- `losses="after"` takes F_k at the client's own model, after training, as FedFV's published code does for its baseline.
- `reduction="sum"` takes the sum over a client's samples for F_k, as q-FFL's code does for its support vector machine
  and as Fed-MGDA+'s code does, up to the batch size. Large clients then weigh as n_k^q.
- Clients should be drawn with probability p_k: the sums are not weighted by data.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.qffl import rates_of
from fedsim.algorithms.mathematics.rows import over_present
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import With
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Stack, stateless


def qfedavg(
    *,
    q: Annotated[float, Field(ge=0)] = 1.0,
    lr: Annotated[float | None, Field(gt=0), With("L", None)] = None,
    L: Annotated[float, Field(gt=0)] | None = None,
    guard: Annotated[float, Field(gt=0)] = 1e-10,
    losses: Literal["before", "after"] = "before",
    reduction: Literal["mean", "sum"] = "mean",
) -> Algorithm:
    """Give clients of large loss a larger weight, the more the larger `q` is; q = 0 is the plain mean.

    One of `lr` and `L` is needed.

    Args:
        q: the power q of the losses F_k in the weights.
        lr: η, the clients' learning rate, which gives L = 1/η; in a run that of `[train]` by default. It decays as
            theirs does.
        L: the Lipschitz constant L of the gradients, the same in all steps. Without it L is 1/lr.
        guard: a small number added to each F_k before it is raised to a power, so that losses of 0 cause no division by
            zero.
        losses: where F_k is taken: "before", at the received model, before training; "after", at the client's own
            model, after training, as FedFV's published code does for its baseline.
        reduction: F_k over the client's training samples: "mean", the mean of their losses; "sum", their sum, so that
            large clients weigh as n_k^q.
    """
    rates, after = rates_of("qfedavg", lr, L), losses == "after"

    def weigh(stack: Stack) -> Direction:
        constants = rates(stack).lipschitz
        of_clients = _losses(stack, after) * (stack.n_samples[: stack.m] if reduction == "sum" else 1)
        raised = np.maximum(of_clients, 0.0) + guard
        squares = stack.gram().diagonal()[: stack.m]
        return Direction(over_present(stack, step_weights(raised, squares, q, constants, constants)))

    return stateless(weigh, Needs(gram="model", losses=not after, after=after))


def _losses(stack: Stack, after: bool) -> Floats:
    """Return [m] the clients' losses before or after training."""
    if not after:
        return stack.losses[: stack.m]
    if stack.losses_after is None:
        raise ConfigError(
            "rule 'qfedavg' with losses = 'after' needs 'losses_after', those of the clients' own models"
        )
    return stack.losses_after[: stack.m]


def step_weights(losses: Floats, squares: Floats, q: float, lipschitz: Floats, scale: Floats) -> Floats:
    """Return the weights `[m]` of the updates Δ_k in Σ D_k / Σ h_k, with δ_k = `scale`_k Δ_k.

    All arguments but `q` are `[m]`; losses are positive, `squares` are ‖Δ_k‖². Dividing all losses by the largest one
    keeps the powers in range, and cancels but for a factor in h_k.
    """
    largest = float(losses.max())
    F = losses / largest
    D = F**q * scale
    h = _slopes(F, q) * squares * (scale**2 / largest) + lipschitz * F**q
    return np.asarray(D / float(h.sum()))


def _slopes(F: Floats, q: float) -> Floats:
    """Return q F^(q-1), zeros for q = 0, where F^-1 may overflow."""
    return q * F ** (q - 1) if q > 0 else np.zeros_like(F)

"""FedGini: Li et al. 2023, "Heterogeneity-Aware Fair Federated Learning" (Information Sciences).

The client of rank i = 0 .. m-1 in the order of loss gets a weight proportional to 1 + (1 - ε) i (i + 1) / D,
D = (m - 1) m (m + 1) / 3.

Deviations and choices:
- `order="ascending"` gives the largest loss the largest weight. The public code sorts by descending loss,
  so that the largest loss has the smallest weight. The paper's text was not available to check.
- `rank="released"` repeats a slip of that code: client k gets the weight of position perm[k], perm the sorting
  permutation, where its rank is k's position in perm.
- Ties keep the order of the rows. One client alone has weight 1 (the code divides by zero).
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.rows import over_present
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Stack, stateless


def fedgini(
    *,
    epsilon: Annotated[float, Field(ge=0, le=1)] = 0.5,
    order: Literal["ascending", "descending"] = "ascending",
    rank: Literal["true", "released"] = "true",
) -> Algorithm:
    """Average the clients' models, weighted by the rank of their losses; epsilon = 1 is the plain mean.

    Args:
        epsilon: how close the weights are to equal ones, ε: the client of rank i weighs 1 + (1 - ε) i (i + 1) / D.
        order: the order in which clients are ranked by loss: "ascending", the largest loss gets the largest weight;
            "descending", as in the public code, the largest loss gets the smallest weight.
        rank: what gives a client its weight: "true", its rank in that order; "released", the slip of the public code:
            client k gets the weight of position perm[k], perm the permutation that sorts the losses.
    """

    def direction(stack: Stack) -> Direction:
        losses = stack.losses[: stack.m]
        by_loss = np.argsort(losses if order == "ascending" else -losses, kind="stable")
        ranks = by_loss if rank == "released" else np.argsort(by_loss, kind="stable")
        return Direction(over_present(stack, _by_rank(stack.m, epsilon)[ranks]))

    return stateless(direction, Needs(losses=True), ["convex"])


def _by_rank(m: int, epsilon: float) -> Floats:
    """Return the weights `[m]` of the ranks, of sum 1."""
    i = np.arange(m, dtype=np.float64)
    weights = 1 + (1 - epsilon) * i * (i + 1) / max((m - 1) * m * (m + 1) / 3, 1.0)
    return np.asarray(weights / weights.sum())

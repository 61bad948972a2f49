"""DRFL: Zhao and Joshi 2022, "A Dynamic Reweighting Strategy for Fair Federated Learning" (ICASSP).

w <- Σ F_k^q w_k / Σ F_k^q over the clients of the step, F_k the loss before training.

Deviations: the exponent q generalises the published code, which has q = 1. The paper's biased client
selection is no part of the rule. A loss below 0, which only an attacker reports, counts as 0. If all losses are 0, the
weights are equal.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.rows import over_present, shares
from fedsim.server.rule import Algorithm, Direction, Needs, Stack, stateless


def drfl(*, q: Annotated[float, Field(ge=0)] = 1.0) -> Algorithm:
    """Average the clients' models, weighted by their losses to the power `q`.

    Args:
        q: the exponent of the losses, 1 in the published code; with 0 the models count equally.
    """

    def direction(stack: Stack) -> Direction:
        losses = np.maximum(stack.losses[: stack.m], 0.0)
        relative = losses / (losses.max() or 1.0)
        return Direction(over_present(stack, shares(relative**q)))

    return stateless(direction, Needs(losses=True), ["convex"])

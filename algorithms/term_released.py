"""TERM as a public federated code computes it (Li et al. 2021); `term` is the paper's rule.

With x_k = exp(t (F_k - max F)): Z <- ½ Z + ½ mean x from Z = 0, and the weights are x_k / (Z m²), m times smaller than
the paper's, and twice that in the first step.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.rows import over_present
from fedsim.server.rule import Algorithm, Direction, Needs, Stack, State


def term_released(*, t: Annotated[float, Field(gt=0)] = 1.0) -> Algorithm:
    """Weight clients by exp(t F), with the normaliser of a public code.

    Args:
        t: the tilt t: the larger, the more the clients of large loss weigh; close to 0 the weights are nearly equal.
    """

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        losses = stack.losses[: stack.m]
        x = np.exp(t * (losses - losses.max()))
        z = 0.5 * state["z"] + 0.5 * float(x.mean())
        return Direction(over_present(stack, x / (z * stack.m**2))), {"z": z}

    return Algorithm(weigh, Needs(losses=True), lambda: {"z": 0.0})

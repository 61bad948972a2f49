"""Centred clipping: Karimireddy et al. 2021, "Learning from History for Byzantine Robust Optimization" (ICML).

Starting at v = 0, each iteration moves the step by the mean of the updates' distances from it, clipped to the radius τ:
v <- v + (1/m) Σ_k (g_k - v) min(1, τ / ‖g_k - v‖). Vectors are coefficients over the updates, so distances come from
the Gram matrix.

Deviations and choices:
- The paper starts at the step before, which is close to the updates once training is under way. Starting at 0, one
  iteration is the mean of the updates, each shortened to τ, and k iterations move at most k τ: `radius` should be about
  the norm of an honest update, or `iterations` large.
- In the paper clients send momenta; here they send what `[client]` trains. The defaults, τ = 10 and one iteration, are
  common in public code, for gradients: updates contain the learning rate and are often shorter, so that nothing is
  clipped.
- Updates count equally, whatever the clients' numbers of samples. With the wrapper `with_absent`, the last updates of
  absent clients count too.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.geometry import distances_to
from fedsim.algorithms.mathematics.rows import over_present
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Stack, stateless


def centred_clipping(
    *, radius: Annotated[float, Field(gt=0)] = 10.0, iterations: Annotated[int, Field(ge=1)] = 1
) -> Algorithm:
    """Average the updates, those farther than `radius` from the average pulled towards it, `iterations` times.

    Args:
        radius: τ, the distance from v up to which an update counts in full; one that is farther away is pulled towards
            v to this distance.
        iterations: how often v moves, from v = 0 on; k iterations move it at most k τ.
    """

    def weigh(stack: Stack) -> Direction:
        gram = stack.gram()[: stack.m, : stack.m]
        centre = np.zeros(stack.m)
        for _ in range(iterations):
            centre = moved(centre, gram, radius)
        return Direction(over_present(stack, centre))

    return stateless(weigh, Needs(gram="model"))


def moved(centre: Floats, gram: Floats, radius: float) -> Floats:
    """Return the centre `[m]` after one iteration, as coefficients over the rows."""
    kept = radius / np.maximum(distances_to(centre, gram), radius)
    return np.asarray((1 - kept.mean()) * centre + kept / len(kept))

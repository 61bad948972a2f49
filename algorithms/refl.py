"""REFL: Abdelmoniem et al. 2023, "REFL: Resource-Efficient Federated Learning" (EuroSys), section 4.2.

The step is the weighted mean of all updates. Fresh ones (staleness 0, n_F of them, of mean u_F) weigh 1,
an update u_s that is τ steps old

    (1 - β) / (τ + 1) + β (1 - exp(-L_s / L_max)),   L_s = ‖u_F - (u_s + n_F u_F) / (n_F + 1)‖² / ‖u_F‖²,

so an old update weighs more the more it would change the mean. Stragglers finish in a synchronous pacing with
`late = "keep"`.

Deviations and choices: the authors' code divides the exponential by 10 and has further weights. Without fresh
updates, or if these cancel out, L is 0 and weights depend on age alone.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.algorithms.mathematics.rows import over_present, shares
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Stack, stateless


def refl(*, beta: Annotated[float, Field(ge=0, le=1)] = 0.35) -> Algorithm:
    """Average fresh and stale updates, stale ones by age and by how much they deviate; `beta` weighs the deviation.

    Args:
        beta: β, the weight of a stale update's deviation beside its age, which has 1 - β; 0 weighs by age alone, 1 by
            deviation alone.
    """

    def direction(stack: Stack) -> Direction:
        stale = stack.staleness[: stack.m] > 0
        deviation = _deviation(stack.gram()[: stack.m, : stack.m], ~stale)
        most = deviation[stale].max(initial=0.0)
        boost = 1 - np.exp(-deviation / most) if most > 0 else np.zeros(stack.m)
        by_age = (1 - beta) / (stack.staleness[: stack.m] + 1)
        weights = np.where(stale, by_age + beta * boost, 1.0)
        return Direction(over_present(stack, shares(weights)))

    return stateless(direction, Needs(gram="model"), ["convex"])


def _deviation(gram: Floats, fresh: NDArray[np.bool_]) -> Floats:
    """Return [m] how much each update would move the mean of the fresh ones, relative to its squared norm."""
    n = int(fresh.sum())
    mean = fresh / max(n, 1)
    length = float(mean @ gram @ mean)
    if not length > 0:
        return np.zeros(len(gram))
    apart = length - 2 * gram @ mean + gram.diagonal()
    return np.asarray(np.maximum(apart, 0.0) / ((n + 1) ** 2 * length))

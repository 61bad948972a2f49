"""ACE: "All-Client Engagement" in asynchronous federated learning (arXiv 2511.19066), Algorithm 1; ACED with `max_age`.

    w <- w - (1/K) Σ_all H_k

at every arrival, so with `pacing.preset = "fedasync"`. H_k is the last update of client k, 0 before the first. ACED
takes the mean over the clients whose last update is at most `max_age` steps old.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.rows import latest
from fedsim.algorithms.mifa import mifa
from fedsim.server.rule import Algorithm, Direction, Needs, Stack, stateless


def ace(*, max_age: Annotated[int | None, Field(ge=1)] = None) -> Algorithm:
    """Average the last updates of all clients at each arrival, or of those heard from for `max_age` steps.

    Args:
        max_age: ACED: the mean is over the clients whose last update is at most this many steps old. Without it, ACE:
            the mean is over all K clients, and those without an update count as 0.
    """
    if max_age is None:
        return mifa(divisor="all")

    def direction(stack: Stack) -> Direction:
        last = latest(stack.clients)
        recent = last[stack.ages[last] <= max_age]
        weights = np.zeros(stack.n)
        weights[recent] = 1 / max(len(recent), 1)
        return Direction(weights)

    return stateless(direction, Needs(memory=max_age), ["convex"])

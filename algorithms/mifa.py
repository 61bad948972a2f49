"""MIFA: Gu et al. 2021, "Fast Federated Learning in the Presence of Arbitrary Device Unavailability" (NeurIPS).

The step is the mean of the last updates of all clients, present or not: w <- w - (1/N) Σ_k G_k, G_k the last
update of client k (Algorithm 1, "memory-augmented impatient").

Deviations and choices:
- The paper starts with a step in which all clients take part. Here N is the number of clients that have sent an
  update, or all K of them with `divisor="all"`, so that clients without an update count as not moving.
- A remembered update keeps the learning rate that it came with, where the authors' code takes the present one:
  `debiased` with `rate = "all"`, `beta = 1` and `rescale` does that.
- A step without updates does not move the model.
- A client with several updates in one step counts with the last.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fedsim.algorithms.mathematics.rows import latest
from fedsim.server.rule import Algorithm, Direction, Needs, Stack, stateless


def mifa(*, divisor: Literal["seen", "all"] = "seen") -> Algorithm:
    """Average the last update of every client, whatever its age.

    Args:
        divisor: N, by which the sum of the last updates is divided: "seen", the number of clients that have sent an
            update; "all", that of all K clients, so that those without an update count as not moving.
    """

    def direction(stack: Stack) -> Direction:
        last = latest(stack.clients)
        weights = np.zeros(stack.n)
        weights[last] = 1 / (len(last) if divisor == "seen" else stack.n_clients)
        return Direction(weights)

    return stateless(direction, Needs(memory=math.inf), ["convex"] if divisor == "seen" else [])

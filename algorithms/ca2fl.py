"""CA2FL: Wang et al. 2024, "Tackling the Data Heterogeneity in Asynchronous Federated Learning with Cached Update
Calibration" (ICLR), Algorithm 2.

With h_k the last update of client k, h̄ their mean, and a buffer of M updates:

    w <- w - (h̄ + (1/M) Σ_buffer (D_k - h_k)),    then h_k <- D_k for the clients of the buffer.

Deviations and choices:
- h̄ is the one before the buffer. It is over all K clients, or over those heard from with `divisor = "seen"`; public
  codes have either.
- Of several updates of a client in the buffer the last counts, and M counts all, as h_k is overwritten at once.
- There is no discount for staleness; wrap the rule in `discounted` for one.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fedsim.algorithms.mathematics.participation import corrected, present_clients
from fedsim.server.rule import Algorithm, Direction, Needs, Stack, stateless


def ca2fl(*, divisor: Literal["all", "seen"] = "all") -> Algorithm:
    """Add the buffer's mean change of its clients' updates to the mean of all clients' last updates.

    Args:
        divisor: the clients that h̄, the mean of the last updates, is over: "all", all K, of which those without an
            update count as 0; "seen", those that sent an update before this step.
    """

    def weigh(stack: Stack) -> Direction:
        heard = len(np.unique(stack.clients[stack.m :])) if divisor == "seen" else stack.n_clients
        shares = np.full(stack.n, 1 / max(heard, 1))
        inverse = np.full(len(present_clients(stack)), max(heard, 1) / stack.m)
        return Direction(corrected(stack, shares, inverse, beta=1.0, last=True))

    return stateless(weigh, Needs(memory=math.inf, replaced=True))

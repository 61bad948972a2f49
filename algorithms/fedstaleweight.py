"""FedStaleWeight: Ma et al. 2024, "FedStaleWeight: Buffered Asynchronous Federated Learning with Fair Aggregation".

w <- w - Σ ω_k Δ_k, ω_k proportional to the client's average staleness, of sum 1 over the buffer: slow clients
come rarely, so each of their updates counts for more.

Deviations and choices:
- The average runs over the client's last `window` updates, this one included (the authors' code, window 5,
  forgets the newest instead of the oldest).
- `offset` is added to the averages. If all are 0, the weights are equal (in the code the model stops).
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.rows import grown, over_present, room, shares
from fedsim.server.rule import Algorithm, Direction, Promise, Stack, State


def fedstaleweight(
    *, window: Annotated[int, Field(ge=1, le=10_000)] = 5, offset: Annotated[float, Field(ge=0)] = 0.0
) -> Algorithm:
    """Average the updates of the buffer, weighted by how stale each client's updates usually are.

    Args:
        window: how many of the client's last updates its average staleness runs over, this one included.
        offset: a number of steps added to each average, which makes the weights more equal; if it is 0, an update of
            average staleness 0 weighs nothing beside stale ones.
    """

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        seen = grown(state["staleness"], room(stack), np.nan)
        present = stack.clients[: stack.m]
        for client, staleness in zip(present.tolist(), stack.staleness[: stack.m].tolist(), strict=True):
            seen[client] = np.append(seen[client, 1:], staleness)
        averages = np.nanmean(seen[present], axis=1)
        return Direction(over_present(stack, shares(averages + offset))), {"staleness": seen}

    promises: frozenset[Promise] = frozenset({"convex"})
    return Algorithm(weigh, init=lambda: {"staleness": np.zeros((0, window))}, promises=promises)

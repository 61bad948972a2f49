"""Optimal sampling: Chen, Horváth and Richtárik 2020, "Optimal Client Sampling for Federated Learning" (TMLR 2022).

The importance of a client is u_k = a_k ‖D_k‖, its weight in the objective times the norm of its update. With n
candidates, m places and u_(1) <= ... <= u_(n), l is the largest integer with 0 < m + l - n <= Σ_{i<=l} u_(i) / u_(l),
and

    π_k = (m + l - n) u_k / Σ_{i<=l} u_(i)   for the l smallest,   1 for the others.

These probabilities add up to m, and minimise the variance of Σ (a_k / π_k) D_k over the clients drawn, an estimate that
needs a rule which divides by the stated inclusion probability.

Deviations and choices:
- In the paper all clients train, and those that are drawn upload. Here only those that are chosen train, so D_k is the
  client's last update that a step received: an approximation. `by = "losses"` takes the loss that the client reported
  last in place of ‖D_k‖, which costs no memory.
- Norms that are old may be far too small, and a client with u_k = 0 would never be asked again. Therefore the share
  `floor` of the probability is uniform: π = (1 - floor) π + floor m / n. 0 is the paper's.
- A client without an update counts with the largest known norm. If none is known, norms count as equal.
- Updates hold the learning rate: with `lr_decay` those of long ago count more.
- The paper draws clients independently. Here systematic sampling draws exactly m, each with exactly its probability
  (Madow 1949): intervals of length π_k side by side, in a random order, and the clients in whose intervals the points
  U, U + 1, ..., U + m - 1 lie, with U uniform on [0, 1).

Known to the server: data sizes, norms of updates or losses.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.selection.parts.draws import optimistic, systematic
from fedsim.algorithms.selection.parts.samples import sample_shares
from fedsim.engine.selector import Choice, Floats, Need, Selector, View, stateless


def optimal_sampling(
    *,
    by: Literal["norms", "losses"] = "norms",
    weights: Literal["samples", "uniform"] = "samples",
    floor: Annotated[float, Field(ge=0, le=1)] = 0.1,
) -> Selector:
    """Draw clients with the probabilities that minimise the variance of an unbiased estimate of the full update.

    Args:
        by: what stands for ‖D_k‖, the norm of a client's update. "norms": that of its last update that a step received.
            "losses": the loss that it reported last, which costs no memory.
        weights: a_k, a client's weight in the objective. "samples": its share of the samples. "uniform": 1 / K.
        floor: share of the probability that is uniform, so that clients with small old norms are asked again; 0 is the
            paper's.
    """
    need: Need = "norms" if by == "norms" else "losses"

    def select(view: View, k: int, rng: np.random.Generator) -> Choice:
        clients = view.candidates
        sizes = view.update_norms(clients) if by == "norms" else view.last_loss[clients]
        shares = sample_shares(view, clients) if weights == "samples" else np.ones(len(clients))
        optimal = optimal_chances(shares * np.maximum(optimistic(sizes), 0.0), k)
        return systematic(clients, (1 - floor) * optimal + floor * k / len(clients), rng)

    return stateless(select, needs=frozenset({need}))


def optimal_chances(importance: Floats, m: int) -> Floats:
    """Return [n] the optimal inclusion probabilities π for `m` places; they add up to `m`."""
    n, some = len(importance), importance > 0
    n_some = int(some.sum())
    if n_some <= m:  # clients of no importance share the places that are left
        return np.where(some, 1.0, (m - n_some) / max(n - n_some, 1))
    order = np.argsort(importance, kind="stable")
    ascending = importance[order]
    sums = np.cumsum(ascending)
    counts = np.arange(n - m + 1, n + 1)
    fits = (m + counts - n) * ascending[counts - 1] <= sums[counts - 1]
    count = int(counts[fits][-1])
    chances = np.ones(n)
    chances[order[:count]] = np.minimum((m + count - n) * ascending[:count] / sums[count - 1], 1.0)
    return chances

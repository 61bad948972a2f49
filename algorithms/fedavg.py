"""Federated averaging: McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks", Algorithm 1.

With w the model, w_k = w - Δ_k the clients' models, p_k = n_k / Σ n over all K clients, S the m updates of
the step:

- `data`: Σ_S n_k w_k / Σ_S n_k, the paper's rule.
- `uniform`: (1/m) Σ_S w_k, for clients that were drawn with probability p_k (Li et al. 2020, q-FFL).
- `scaled`: (K/m) Σ_S p_k w_k, unbiased for uniformly drawn clients; its weights need not sum to one.
- `completed`: (1 - Σ_S p_k) w + Σ_S p_k w_k; absent clients count as having stayed where they were.
- `sequential`: s <- s + (w_k - s)/K, client by client, from s = w: what the FedLF authors' platform runs under
  the name Ditto. The later a client the more it counts, and w moves about m/K of the way only.

Deviation: a client with two updates in one step (buffered pacing) counts twice.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedsim.algorithms.mathematics.rows import over_present
from fedsim.server.rule import Algorithm, Direction, Floats, Stack, stateless

Weighting = Literal["data", "uniform", "scaled", "completed", "sequential"]


def fedavg(*, weighting: Weighting = "data") -> Algorithm:
    """Average the clients' models, weighted by their numbers of training samples or as `weighting` says.

    Args:
        weighting: the weights of the models w_k of the m present clients S, with K clients and p_k = n_k / Σ n over all
            of them: "data", n_k / Σ_S n_k; "uniform", 1/m; "scaled", (K/m) p_k, which need not add up to one;
            "completed", p_k, and what is missing to one for the current model w; "sequential", those of
            s <- s + (w_k - s)/K, client by client, from s = w.
    """

    def direction(stack: Stack) -> Direction:
        weights = over_present(stack, _average(stack, weighting))
        return Direction(weights, keep=float(weights.sum()) if weighting == "scaled" else 1.0)

    return stateless(direction, promises=["convex"] if weighting in ("data", "uniform") else [])


def _average(stack: Stack, weighting: Weighting) -> Floats:
    if weighting == "sequential":
        share = 1 / stack.n_clients
        return share * (1 - share) ** np.arange(stack.m - 1.0, -1.0, -1.0)
    n_samples = stack.n_samples[: stack.m].astype(np.float64)
    if weighting == "uniform":
        return np.full(stack.m, 1 / stack.m)
    if weighting == "data":
        return np.asarray(n_samples / n_samples.sum())
    factor = stack.n_clients / stack.m if weighting == "scaled" else 1.0
    return np.asarray(n_samples * (factor / stack.total_samples))

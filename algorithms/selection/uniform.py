"""Uniform sampling without replacement (FedAvg, McMahan et al. 2017, Algorithm 1)."""

from __future__ import annotations

import numpy as np

from fedsim.engine.selector import Clients, Floats, Selector, View, stateless


def uniform() -> Selector:
    """Choose uniformly at random, without replacement, among the clients that are online and idle."""

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        return rng.choice(view.candidates, size=k, replace=False)

    def propose(numbers: Floats, n_clients: int) -> Clients:
        return (numbers * n_clients).astype(np.int64)

    return stateless(select, propose=propose)

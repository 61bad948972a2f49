"""Uniform sampling without replacement (FedAvg, McMahan et al. 2017, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from fedsim.selection import Clients, Selector, View, stateless


def uniform() -> Selector:
    """Choose uniformly at random, without replacement, among the clients that are online and idle."""

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        return rng.choice(view.candidates, size=k, replace=False)

    def one(is_candidate: Callable[[int], bool], n_clients: int, numbers: Iterable[float]) -> int | None:
        for number in numbers:
            client = int(number * n_clients)
            if is_candidate(client):
                return client
        return None

    return stateless(select, one=one)

"""Uniform sampling without replacement (FedAvg, McMahan et al. 2017, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedsim.selection import Clients, Selector, View, stateless

_TRIES = 48
"""Clients that are tried for a single place before all candidates are looked at."""


def uniform() -> Selector:
    """Choose uniformly at random, without replacement, among the clients that are online and idle."""

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        return rng.choice(view.candidates, size=k, replace=False)

    def one(is_candidate: Callable[[int], bool], n_clients: int, rng: np.random.Generator) -> int | None:
        for number in (rng.random(_TRIES) * n_clients).tolist():
            if is_candidate(int(number)):
                return int(number)
        return None

    return stateless(select, one=one)

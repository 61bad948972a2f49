"""Uniform sampling without replacement (FedAvg, McMahan et al. 2017, Algorithm 1).

Each of c candidates is included with probability k / c. This is conditional on who is online and idle at the choice,
not marginal: a client that is seldom online is seldom a candidate, and weights by the inverse of k / c do not make up
for that. Single places are filled without counting the candidates, and state no probability.
"""

from __future__ import annotations

import numpy as np

from fedsim.engine.selector import Choice, Clients, Floats, Selector, View, stateless


def uniform() -> Selector:
    """Choose uniformly at random, without replacement, among the clients that are online and idle.

    A client's inclusion probability is k / candidates: conditional on who is online, not marginal.
    """

    def select(view: View, k: int, rng: np.random.Generator) -> Choice:
        chosen = rng.choice(view.candidates, size=k, replace=False)
        return Choice(chosen, np.full(k, k / len(view.candidates)))

    def propose(numbers: Floats, n_clients: int) -> Clients:
        return (numbers * n_clients).astype(np.int64)

    return stateless(select, propose=propose)

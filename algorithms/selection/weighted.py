"""Sampling in proportion to data size (q-FFL, Li et al. 2020; FedFV, Wang et al. 2021).

Clients are drawn one after another, each with probability n_i / Σ n_j over the candidates not drawn yet, as q-FFL's
code does. Its text draws independently, as `replacement` does. A client cannot do two jobs at once, so a client drawn
twice gets one job, and fewer than `k` clients may be chosen. A client without samples is drawn when no others are left,
or never with replacement.

Known to the server: data sizes.
"""

from __future__ import annotations

import numpy as np

from fedsim.algorithms.selection.parts.draws import proportional
from fedsim.engine.selector import Clients, Selector, View, stateless


def weighted(*, replacement: bool = False) -> Selector:
    """Choose clients at random with probability proportional to their number of training samples.

    `replacement` draws `k` times from all candidates and counts those drawn several times once.
    """

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        sizes = view.n_samples[view.candidates].astype(np.float64)
        if not replacement or not sizes.any():
            return proportional(view.candidates, sizes, k, rng)
        drawn = rng.choice(view.candidates, size=k, p=sizes / sizes.sum())
        _, first = np.unique(drawn, return_index=True)
        return np.asarray(drawn[np.sort(first)])

    return stateless(select)

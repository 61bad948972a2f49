"""A queue of all clients: the longest time between two uses of the same one (pfl-research, Granqvist et al. 2024).

All clients stand in one random order. Whoever is first in it and there is chosen and goes to its end, so between two
jobs of a client all others that were there had one. pfl-research walks through its users in a fixed order; there
everybody is always there, and both are the same.

Known to the server: nothing but who is there.
"""

from __future__ import annotations

import numpy as np

from fedsim.engine.selector import Clients, Selector, State, View


def minimise_reuse() -> Selector:
    """Choose whoever has waited longest in a queue of all clients, which begins in a random order."""

    def select(view: View, k: int, rng: np.random.Generator, state: State) -> tuple[Clients, State]:
        ticket = state["ticket"].copy() if state else rng.permutation(view.n_clients).astype(np.int64)
        chosen = view.candidates[np.argsort(ticket[view.candidates])[:k]]
        ticket[chosen] = ticket.max() + 1 + np.arange(len(chosen))
        return chosen, {"ticket": ticket}

    return Selector(select)

"""Select from a queue of all clients, so that each waits as long as possible (pfl-research, Granqvist et al. 2024).

The queue begins in a random order. The first clients that are online are chosen and go to its end, so that all other
clients that were online had a job between two jobs of one client. pfl-research walks through its users in a fixed
order; its users are always online, and the two are then the same.

The first choice draws the queue, and includes each of c candidates with probability k / c. Later choices draw nothing:
their clients are included with probability 1, given the queue.

Known to the server: who is online.
"""

from __future__ import annotations

import numpy as np

from fedsim.engine.selector import Choice, Selector, State, View


def minimise_reuse() -> Selector:
    """Choose the clients that have waited longest in a queue of all clients, which begins in a random order."""

    def select(view: View, k: int, rng: np.random.Generator, state: State) -> tuple[Choice, State]:
        ticket = state["ticket"].copy() if state else rng.permutation(view.n_clients).astype(np.int64)
        chosen = view.candidates[np.argsort(ticket[view.candidates])[:k]]
        ticket[chosen] = ticket.max() + 1 + np.arange(len(chosen))
        inclusion = 1.0 if state else k / len(view.candidates)
        return Choice(chosen, np.full(k, inclusion)), {"ticket": ticket}

    return Selector(select, draws=False)

"""Select clients in turn by number; clients that are offline when their turn comes are passed over.

Known to the server: who is online.
"""

from __future__ import annotations

import numpy as np

from fedsim.engine.selector import Choice, Selector, State, View


def round_robin() -> Selector:
    """Choose the clients that follow the one chosen last, by number, and begin again after the last client.

    A client that was passed over waits for the next pass; with `minimise_reuse` it keeps its place in the queue.
    """

    def select(view: View, k: int, rng: np.random.Generator, state: State) -> tuple[Choice, State]:
        turn = int(np.searchsorted(view.candidates, state["next"]))
        chosen = np.roll(view.candidates, -turn)[:k]
        return Choice.certain(chosen), {"next": int(chosen[-1]) + 1}

    return Selector(select, lambda: {"next": 0}, draws=False)

"""Whoever has been out of the model longest goes first: the age of a client's last contribution.

Known to the server: who contributed when.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedsim.algorithms.selection.parts.draws import lowest
from fedsim.engine.selector import Clients, Selector, View, stateless


def longest_absent(*, since: Literal["used", "dispatched"] = "used") -> Selector:
    """Choose the clients whose last update was used in the earliest step, never before all; ties at random.

    `since = "dispatched"` goes by the last job given instead, so that jobs that were lost count too.
    """

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        last = view.last_step if since == "used" else view.last_dispatch
        return lowest(view.candidates, last[view.candidates], k, rng)

    return stateless(select)

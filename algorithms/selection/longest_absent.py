"""Select the clients whose last contribution to the model is oldest.

Known to the server: when each client contributed.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedsim.algorithms.selection.parts.draws import choose_lowest
from fedsim.engine.selector import Choice, Selector, View, stateless


def longest_absent(*, since: Literal["used", "dispatched"] = "used") -> Selector:
    """Choose the clients whose last update was used in the earliest step, first those without one; ties at random.

    Args:
        since: which step of a client counts. "used": the one that used its last update. "dispatched": that of its last
            dispatch instead, so that lost jobs count too.
    """

    def select(view: View, k: int, rng: np.random.Generator) -> Choice:
        last = view.last_step if since == "used" else view.last_dispatch
        return choose_lowest(view.candidates, last[view.candidates], k, rng)

    return stateless(select, draws=False)

"""Power-of-choice: Cho, Wang and Joshi 2020, "Client Selection in Federated Learning" (algorithms π_pow-d, π_rpow-d).

Draw d candidates without replacement, with probability proportional to n_i, then take the k of them with the largest
local loss. `asked` (π_pow-d) asks the d clients for the loss of the current model, which takes no virtual time.
`reported` (π_rpow-d) takes the loss that each client reported last, infinite for those that never did. With `[train]
loss_samples` the loss covers so many of a client's samples (π_cpow-d).

Known to the server: data sizes and losses.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.selection.parts.draws import highest, proportional
from fedsim.engine.selector import Clients, Selector, View, stateless


def power_of_choice(
    *,
    d: Annotated[int, Field(ge=1)] | None = None,
    losses: Literal["asked", "reported"] = "asked",
) -> Selector:
    """Choose the clients with the largest losses among `d` drawn in proportion to data size.

    Args:
        d: number of candidates drawn, at least k and at most all of them; None: 2 k. With d = k this equals `weighted`.
        losses: "asked" (π_pow-d) asks the drawn candidates for the loss of the current model, which takes no virtual
            time. "reported" (π_rpow-d) takes the loss that each client reported last, infinite for those that never
            did.
    """

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        sizes = view.n_samples[view.candidates]
        pool = proportional(view.candidates, sizes, max(2 * k if d is None else d, k), rng)
        values = view.ask_losses(pool) if losses == "asked" else view.last_loss[pool]
        return highest(pool, np.where(np.isnan(values), np.inf, values), k, rng)

    return stateless(select, needs=frozenset({"asked" if losses == "asked" else "losses"}))

"""Draw clients with large losses more often.

`proportional`: one after another without replacement, in proportion to the loss reported last.

`afl`: active federated learning, Goetz et al. 2019, Algorithm 2 (not the rule `afl` of Mohri et al.). A client's value
is v = loss · √n, with the mean loss that it reported last. The share α1 of the candidates with the lowest values gets
v = -∞; (1 - α3) k clients are drawn without replacement in proportion to exp(α2 v), the others uniformly. Goetz et al.
rank all clients; here only the c candidates can be ranked. α1 c and α3 k are rounded down; α3 k below 1 is the
probability of one place.

A client that never reported, or reported infinity, counts with the largest known value. If no value is known, all
clients are equal.

Known to the server: losses that came with updates, for `afl` also data sizes.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.selection.parts.draws import (
    lowest,
    optimistic,
    part,
    proportional,
    share_of,
    topped_up,
)
from fedsim.common.option_requirements import With
from fedsim.engine.selector import Clients, Selector, View, stateless

Share = Annotated[float, Field(ge=0, le=1)]
OfAFL = With("variant", "afl")


def loss_based(
    *,
    variant: Literal["proportional", "afl"] = "proportional",
    alpha1: Annotated[Share, OfAFL] = 0.75,
    alpha2: Annotated[float, Field(ge=0), OfAFL] = 0.01,
    alpha3: Annotated[Share, OfAFL] = 0.1,
) -> Selector:
    """Draw clients by the loss that they reported last.

    Args:
        variant: "proportional" draws in proportion to the loss. "afl" is active federated learning (Goetz et al. 2019,
            Algorithm 2), which draws by the value v = loss · √n of a client with n samples.
        alpha1: α1, the share of the candidates, those with the lowest values, that are not drawn by value.
        alpha2: α2, how strongly values count: clients are drawn in proportion to exp(α2 v); 0: all alike.
        alpha3: α3, the share of the places that are drawn uniformly.
    """

    def select(view: View, k: int, rng: np.random.Generator) -> Clients:
        clients, losses = view.candidates, view.last_loss[view.candidates]
        if variant == "proportional":
            return proportional(clients, np.maximum(optimistic(losses), 0.0), k, rng)
        values = optimistic(losses * np.sqrt(view.n_samples[clients]))
        odds = np.exp(alpha2 * (values - values.max()))
        odds[lowest(np.arange(len(clients)), values, share_of(len(clients), alpha1), rng)] = 0.0
        drawn = min(k - part(k, alpha3, rng), int(np.count_nonzero(odds)))
        return topped_up(proportional(clients, odds, drawn, rng), clients, k, rng)

    return stateless(select, needs=frozenset({"losses"}))

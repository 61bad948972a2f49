"""FedAU: Wang and Ji 2024, "A Lightweight Method for Tackling Unknown Participation Statistics in Federated Averaging"
(ICLR), Algorithm 2.

    w <- w - (1/K) Σ_S ω_k D_k

with ω_k the mean number of steps between the uses of client k before this one, the first counted from the start; 1
before there is one. After `cutoff` steps without a use an interval of that length is counted, and counting begins anew.

Deviations and choices:
- The interval that ends with this step counts from the next step on, as in the authors' code.
- A round of the paper is a step of the server here. A client with several updates in a step takes part once, with their
  mean. All K clients count, also those that never took part, as in the code.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsim.algorithms.debiased import objective_shares
from fedsim.algorithms.mathematics.participation import corrected, first_history, inverse_rates
from fedsim.server.rule import Algorithm, Direction, Stack, State


def fedau(*, cutoff: Annotated[int | None, Field(ge=1)] = 50) -> Algorithm:
    """Weight updates by the mean number of steps between a client's participations, each at most `cutoff` steps.

    Args:
        cutoff: after this many steps without a use of the client an interval of this length is counted, and counting
            begins anew. None sets no limit.
    """

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        omega, after = inverse_rates(stack, state, "intervals", cutoff=cutoff)
        return Direction(corrected(stack, objective_shares(stack, "uniform"), omega, beta=0.0)), after

    return Algorithm(weigh, init=first_history)

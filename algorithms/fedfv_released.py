"""FedFV as later public code computes it (Wang et al. 2021); `fedfv` is the paper's rule.

The later code of FedFV's authors visits ages τ-1..0, which include this step's updates, from step τ - 1 on: with τ = 1
it touches this step's clients alone. The code of the FedLF authors adds `guard`, 1e-6, to squared norms and to the
final norm as well.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsim.algorithms.fedfv import fair_average, order_by_loss
from fedsim.server.rule import Algorithm, Direction, Needs, Stack, stateless


def fedfv_released(
    *,
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.1,
    tau: Annotated[int, Field(ge=0)] = 1,
    guard: Annotated[float, Field(ge=0)] = 0.0,
) -> Algorithm:
    """Project as `fedfv` does, at the ages and with the denominators of later public code.

    Args:
        alpha: the share of clients, those of largest loss, whose updates stay as they are: m - ceil((m - 1)(1 - alpha))
            of m, none if it is 0.
        tau: τ: the mean is projected off updates of age τ - 1 to 0, where 0 are those of this step, from step τ - 1 on,
            steps counted from 0. With 0 none count.
        guard: a number added to the squared norms that projections divide by and to the norm of the projected mean,
            before it gets the length of the plain mean; 1e-6 in the code of the FedLF authors.
    """
    ages = range(tau - 1, -1, -1)

    def weigh(stack: Stack) -> Direction:
        counted = ages if stack.step >= tau - 1 else range(0)
        return fair_average(stack, order_by_loss(stack), alpha, counted, guard)

    needs = Needs(gram="model", losses=True, memory=max(tau - 1, 0), reports_of_present=True)
    return stateless(weigh, needs)

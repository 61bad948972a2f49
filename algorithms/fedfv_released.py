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
    """Project as `fedfv` does, at the ages and with the denominators of later public code."""
    ages = range(tau - 1, -1, -1)

    def weigh(stack: Stack) -> Direction:
        counted = ages if stack.step >= tau - 1 else range(0)
        return fair_average(stack, order_by_loss(stack), alpha, counted, guard)

    needs = Needs(gram="model", losses=True, memory=max(tau - 1, 0), reports_of_present=True)
    return stateless(weigh, needs)

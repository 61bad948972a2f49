"""FedBuff: Nguyen et al. 2022, "Federated Learning with Buffered Asynchronous Aggregation" (AISTATS), Algorithm 1.

w <- w - η_g (1/m) Σ σ(s_k) Δ_k over the m updates of the buffer, s_k their staleness, σ = 1/√(1 + s) or 1.
The pacing decides how many updates fill the buffer. `normalise` divides by Σ σ(s_k) instead of m, as FedScale's
asynchronous aggregator does (of whole models), so that a buffer of stale updates steps as far as one of new ones.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedsim.algorithms.mathematics.rows import over_present
from fedsim.algorithms.mathematics.staleness import discounts
from fedsim.server.rule import Algorithm, Direction, Stack, stateless


def fedbuff(
    *,
    server_lr: Annotated[float, Field(gt=0)] = 1.0,
    staleness: Literal["none", "sqrt"] = "sqrt",
    normalise: bool = False,
) -> Algorithm:
    """Average the updates of the buffer, with smaller weights for stale ones.

    Args:
        server_lr: η_g, the factor on the average of the buffer.
        staleness: σ(s), the weight of an update that is s steps stale: "none", 1; "sqrt", 1/√(1 + s).
        normalise: whether to divide by Σ σ(s_k) instead of m: the weights then add up to η_g, so that only relative
            staleness counts.
    """
    kind: Literal["constant", "sqrt"] = "constant" if staleness == "none" else "sqrt"

    def direction(stack: Stack) -> Direction:
        factors = discounts(stack.staleness[: stack.m], kind, 0.5, 0)
        total = factors.sum() if normalise else stack.m
        return Direction(over_present(stack, server_lr / total * factors))

    return stateless(direction)

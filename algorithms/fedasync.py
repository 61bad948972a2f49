"""FedAsync: Xie et al. 2019, "Asynchronous Federated Optimization", Algorithm 1.

On arrival of w_k, trained from the model of s steps ago: w <- (1 - α σ(s)) w + α σ(s) w_k.

Deviations and choices:
- Rows are Δ_k = (model it started from) - w_k, so that the step is w <- w - α σ(s) Δ_k. For s = 0 that is the
  paper's; for s > 0 the paper also pulls the model back, by α σ(s), towards the old one that the client
  started from. With `rows = "current"` in `[algorithm]`, Δ_k is (current model) - w_k, and the step of a
  single update is the paper's.
- Several updates in one step are added up, each times its own α σ(s). With `rows = "current"` this is not the paper's
  sequence, in which each update shrinks those before it; α σ(s) that add up to more than 1 overshoot.
- The client's proximal term, ρ/2 ‖x - w‖², is part of local training.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedsim.algorithms.mathematics.rows import over_present
from fedsim.algorithms.mathematics.staleness import discounts
from fedsim.common.option_requirements import Unless, With
from fedsim.server.rule import Algorithm, Direction, Stack, stateless


def fedasync(
    *,
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.6,
    staleness: Literal["constant", "polynomial", "hinge"] = "polynomial",
    a: Annotated[float, Field(gt=0), Unless("staleness", "constant")] = 0.5,
    b: Annotated[float, Field(ge=0), With("staleness", "hinge")] = 4.0,
) -> Algorithm:
    """Apply each update as it comes, times `alpha` and a discount of its staleness.

    Args:
        alpha: α, the factor on every update, beside its discount.
        staleness: σ(s), the discount of an update that is s steps stale: "constant", 1; "polynomial", (s + 1)^-a;
            "hinge", 1 up to s = b, then 1 / (a (s - b) + 1).
        a: how fast σ(s) falls: the exponent of "polynomial", the factor on s - b in "hinge", there typically 10.
        b: the largest staleness, in steps, without a discount.
    """

    def direction(stack: Stack) -> Direction:
        return Direction(over_present(stack, alpha * discounts(stack.staleness[: stack.m], staleness, a, b)))

    return stateless(direction)

"""Discount stale rows before the rule sees them, so that whatever it guarantees holds for the discounted rows.

Staleness functions of Xie et al. 2019 (FedAsync, section 5.2) and Nguyen et al. 2022 (FedBuff). A positive factor
on a row changes no sign of an inner product: a direction that conflicts with no discounted row conflicts with no
row. Discounting the result's terms afterwards would lose that.

The staleness of a remembered row is the one with which it came plus its age. Rules that discount by themselves
(`fedasync`, `fedbuff`) discount twice. Rules that give all updates the same length are refused, because they would undo
the discount.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsim.algorithms.mathematics.stack_views import on_scaled, refuse_scale_free
from fedsim.algorithms.mathematics.staleness import Discount, discounts
from fedsim.common.option_requirements import With
from fedsim.server.rule import Algorithm, Floats, Stack


def discounted(
    rule: Algorithm,
    *,
    staleness: Discount = "polynomial",
    a: Annotated[float, Field(gt=0), With("staleness", "polynomial", "hinge")] = 0.5,
    b: Annotated[float, Field(ge=0), With("staleness", "hinge")] = 4.0,
) -> Algorithm:
    """Multiply each row by a discount of its staleness s, in server steps, then run the rule.

    Args:
        staleness: the discount: "constant", 1; "polynomial", (s + 1)^-a; "hinge", 1 up to s = b, then 1 / (a (s - b) +
            1); "sqrt", (s + 1)^-½.
        a: how fast the discount falls with s: the larger, the faster.
        b: the largest staleness, in server steps, of rows that are not discounted.
    """
    refuse_scale_free(rule)

    def factors(stack: Stack) -> Floats:
        return discounts(stack.staleness + stack.ages, staleness, a, b)

    return on_scaled(rule, factors, rule.needs)

"""FedFV's Algorithm 3 for any rule: project its direction off conflicts with absent clients (Wang et al. 2021).

The rule sees the present rows only. Its direction is then projected, oldest age first, off the sum of the rows of
that age that it conflicts with, and stretched to its former length. `external` around `fedfv` with tau = 0 equals
FedFV. Rules that remember absent clients themselves are refused, and those that combine the rows column by column,
because their direction is no weighted sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field

from fedsim.algorithms.fedfv import off_absent
from fedsim.algorithms.mathematics.geometry import norm, of_length
from fedsim.algorithms.mathematics.stack_views import (
    refuse_columns,
    refuse_memory,
    selected,
    spread,
    with_gram,
)
from fedsim.server.rule import Algorithm, Direction, Stack, State


def external(rule: Algorithm, *, tau: Annotated[int, Field(ge=1)] = 1) -> Algorithm:
    """Project the rule's direction off the updates of clients absent for up to `tau` steps, from step `tau` on.

    Args:
        tau: τ, the most steps for which a client may be absent and its last update still count; the first τ steps of
            the run are not projected.
    """
    refuse_memory(rule)
    refuse_columns(rule, "a projection needs the weights of a sum")

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        rows = np.arange(stack.m)
        direction, after = rule.weigh(selected(stack, rows, stack.m), state)
        direction = spread(direction, rows, stack.n)
        return (_projected(stack, direction, tau) if stack.step >= tau else direction), after

    needs = replace(with_gram(rule.needs), memory=tau, reports_of_present=True)
    return replace(rule, weigh=weigh, needs=needs, promises=frozenset())


def _projected(stack: Stack, direction: Direction, tau: int) -> Direction:
    before = np.atleast_2d(direction.weights)
    grams = stack.grams if len(before) == len(stack.grams) else stack.gram()[None]
    length = norm(before, grams)
    table = off_absent(before, grams, stack.ages, range(tau, 0, -1))
    removed = norm(before - table, grams) / length if length > 0 else 0.0
    weights = of_length(table, grams, length).reshape(direction.weights.shape)
    diagnostics = {**direction.diagnostics, "external_removed": removed}
    return replace(direction, weights=weights, diagnostics=diagnostics)

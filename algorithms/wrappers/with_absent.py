"""FedLF's absent clients for any rule: their last updates count as present (Pan et al. 2024, section 4.3).

The rule sees the remembered rows of clients that are absent for at most the window's steps as present ones; their age
adds to their staleness. An average then includes them, FedFV projects off them, a hull contains them. Losses and
accuracies are those that came with the rows. Rules that remember absent clients themselves are refused.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.stack_views import participation_window, refuse_memory, selected, spread
from fedsim.server.rule import Algorithm, Direction, Stack, State


def with_absent(
    rule: Algorithm,
    *,
    window: Annotated[int, Field(ge=1)] | Literal["participation", "all"] = "participation",
) -> Algorithm:
    """Let the rule count the last updates of absent clients as present.

    Args:
        window: how many steps a client may be absent for its last update to count: a number; "participation", FedLF's
            M/m, with M clients seen before and m present; "all", any number.
    """
    refuse_memory(rule)
    memory = window if isinstance(window, int) else math.inf

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        oldest = participation_window(stack) if window == "participation" else memory
        rows = np.flatnonzero(stack.ages <= oldest)
        part = selected(stack, rows, len(rows))
        part = replace(part, staleness=part.staleness + part.ages, ages=np.zeros_like(part.ages))
        direction, after = rule.weigh(part, state)
        return spread(direction, rows, stack.n), after

    return replace(rule, weigh=weigh, needs=replace(rule.needs, memory=memory, reports_of_present=False))

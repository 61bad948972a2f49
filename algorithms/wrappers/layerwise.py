"""Run a rule on each layer by itself, as FedLF does with the least-norm point (Pan et al. 2024).

The rule sees one block's inner products at a time, with the losses and all else as for the whole model, so each
layer gets its own weights. With `merging`, a block whose direction is zero (often a layer with fewer parameters than
there are rows) joins its neighbour and the rule runs on the two together.

The rule has a state of its own in each block; joined blocks use that of the first. Diagnostics of the rule are recorded
as the mean over blocks, `kkt_residual` as the largest. Rules without inner products would have the same weights in
every layer; rules that work layer by layer or column by column need no wrapper: all are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.blocks import Part, first_zero, merged, weights_by_block
from fedsim.algorithms.mathematics.stack_views import refuse_columns
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import With
from fedsim.server.rule import Algorithm, Direction, Floats, Stack, State


def layerwise(
    rule: Algorithm,
    *,
    merging: bool = True,
    zero_tolerance: Annotated[float, Field(ge=0, lt=1), With("merging", True)] = 1e-4,
) -> Algorithm:
    """Run the rule layer by layer; `zero_tolerance` is the relative norm below which a block is joined.

    Args:
        merging: whether a block whose direction is zero joins its neighbour, and the rule runs on the two together.
        zero_tolerance: a direction counts as zero if its norm is at most this share of the weighted sum of the rows'
            norms.
    """
    _check_rule(rule)

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        directions: dict[int, Direction] = {}
        after: State = {}

        def solve(gram: Floats, first: int, width: int) -> Part:
            direction, own = rule.weigh(replace(stack, grams=gram[None]), _own(rule, state, first))
            directions[first] = direction
            after.update({f"{first}/{name}": value for name, value in own.items()})
            weights = direction.weights.reshape(-1)  # from [n], or [1, n] of a rule for one block
            return Part(gram, weights, first, width)

        parts = [solve(gram, index, 1) for index, gram in enumerate(stack.grams)]
        while merging and (zero := first_zero(parts, zero_tolerance)) is not None:
            parts = merged(parts, zero, solve)
        diagnostics = _summary([directions[part.first] for part in parts])
        return replace(directions[0], weights=weights_by_block(parts), diagnostics=diagnostics), after

    return replace(rule, weigh=weigh, needs=replace(rule.needs, gram="blocks"), init=dict)


def _check_rule(rule: Algorithm) -> None:
    """Refuse a rule whose weights cannot differ by layer, or do already."""
    refuse_columns(rule, "it treats each parameter by itself already, whatever its layer")
    if rule.needs.gram == "none":
        raise ConfigError("the rule uses no inner products: its weights would be the same in every layer")
    if rule.needs.gram == "blocks":
        raise ConfigError("the rule works layer by layer already")


def _own(rule: Algorithm, state: State, first: int) -> State:
    """Return the rule's state for the blocks from `first` on, or its first state."""
    mark = f"{first}/"
    own: dict[str, Any] = {n.removeprefix(mark): v for n, v in state.items() if n.startswith(mark)}
    return own or rule.init()


def _summary(directions: list[Direction]) -> dict[str, float]:
    """Return means over blocks, and the largest residual; a block with a trivial solution may lack some numbers."""
    blocks = [direction.diagnostics for direction in directions]
    names = dict.fromkeys(name for numbers in blocks for name in numbers)
    summary = {name: float(np.mean([numbers.get(name, 0.0) for numbers in blocks])) for name in names}
    if "kkt_residual" in summary:
        summary["kkt_residual"] = max(
            numbers["kkt_residual"] for numbers in blocks if "kkt_residual" in numbers
        )
    return {**summary, "blocks": float(len(directions))}

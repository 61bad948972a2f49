"""FedLF: Pan et al. 2024, "FedLF: Layer-Wise Fair Federated Learning" (AAAI), Eq. 5-8.

In each layer the step is the least-norm point of the hull of the present clients' gradients, of g_P, the gradient of
P(w) = -cos(1, F(w)) (Eq. 5, the fair row), and of the last gradients of clients that are absent for at most τ = M/m
steps, M the number of clients seen before. A layer whose point is zero merges with its neighbour. The whole step gets
the norm of the mean gradient. The ablations of the paper's Table 3 are arms of `examples/papers/fedlf_table3.toml`;
the authors' released code is the rule `fedlf_released`.

Deviations and choices:
- The paper's direction has the opposite sign. Updates Δ stand for gradients, as Δ = η g for one full-batch step.
- `lengths="equal"` scales each fragment of a layer, and the fragment of g_P, to the mean norm of the present ones. A
  positive factor changes no sign, so every inequality of the paper still holds. `lengths="raw"` is the paper's text:
  the shortest fragment then bounds the length of the least-norm point, and a client that fits its samples decides the
  step of all.
- Zero means a norm of at most `zero_tolerance` times the weighted sum of the rows' norms; the paper gives no tolerance.
  The lowest zero layer merges with the next, the last one with the layer before it, one at a time.
- With equal losses, one client or zero losses there is no fair row.
- A fragment (with raw lengths, an update) of at most `zero_tolerance` times the mean norm of the present ones is left
  out: it holds little but the rounding of float32, and a zero point in the hull would stop every step.
- A layer is a module, weight and bias together, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.blocks import Part, first_zero, merged, weights_by_block
from fedsim.algorithms.mathematics.geometry import as_long_as_mean, fair_weights, unit_fair_weights
from fedsim.algorithms.mathematics.hull import Hull, Rows, longer
from fedsim.algorithms.mathematics.min_norm import Solver
from fedsim.algorithms.mathematics.rows import over_present
from fedsim.algorithms.mathematics.stack_views import participation_window
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import Unless
from fedsim.server.rule import Algorithm, Direction, Floats, GramLevel, Needs, Stack, stateless

_FAIR_WEIGHTS: dict[str, Callable[[Floats], Floats]] = {
    "gradient": fair_weights,
    "unit": unit_fair_weights,
}
_GRAM: dict[str, GramLevel] = {"layers": "blocks", "slices": "blocks", "model": "model"}
_MEMORY = {"window": math.inf, "none": 0, "previous": 1, "all": math.inf}


def fedlf(
    *,
    lengths: Literal["equal", "raw"] = "equal",
    level: Literal["layers", "slices", "model"] = "layers",
    fair_row: Literal["gradient", "unit", "none"] = "gradient",
    merging: Annotated[bool, Unless("level", "model")] = True,
    absent: Literal["window", "none", "previous", "all"] = "window",
    zero_tolerance: Annotated[float, Field(ge=0, lt=1)] = 1e-4,
    solver: Solver = "direct",
) -> Algorithm:
    """Descend for every client in every layer, and towards equal losses.

    Args:
        lengths: the norms of the rows in each layer: "equal", all fragments and that of g_P are scaled to the mean norm
            of the present clients' fragments; "raw", they stay as they are, as in the paper's text.
        level: the blocks that get a least-norm point each: "layers", the modules of the model; "slices", equal slices
            of the parameters, as many as there are layers; "model", all parameters together.
        fair_row: the weights of the clients' gradients in the fair row: "gradient", those of Eq. 5, which make it g_P;
            "unit", the same scaled to norm 1, as in FedMDFG, only with lengths = "raw"; "none", no fair row.
        merging: whether a layer whose least-norm point is zero merges with its neighbour.
        absent: the absent clients whose last gradients count: "window", those absent for at most τ = M/m steps, with M
            clients seen before and m present; "none"; "previous", those of the previous step; "all".
        zero_tolerance: a layer merges if the norm of its point is at most this share of the weighted sum of the rows'
            norms; fragments (with raw lengths, updates) of at most this share of the present ones' mean are left out.
        solver: of the least-norm problem: "direct", an active-set method; "cvxpy", Clarabel, a slow reference.
    """
    if fair_row == "unit" and lengths == "equal":
        raise ConfigError('fair_row = "unit" sets a length: expected lengths = "raw", found "equal"')

    def weigh(stack: Stack) -> Direction:
        fair = np.zeros(stack.n)
        if fair_row != "none":  # Eq. 5
            fair = over_present(stack, _FAIR_WEIGHTS[fair_row](stack.losses[: stack.m]))
        rows = _recent(stack, absent)
        if lengths == "raw":
            rows = longer(stack.gram(), rows, stack.m, zero_tolerance)
        raw = Hull(rows, np.ones(stack.n), fair)
        grams = stack.gram()[None] if level == "model" else stack.grams

        def least_norm(gram: Floats, first: int, width: int) -> Part:  # Eq. 6-8
            hull = raw.equalised(gram, stack.m, zero_tolerance) if lengths == "equal" else raw
            weights, residual = hull.least(gram, solver)
            return Part(gram, weights, first, width, residual)

        layers = [least_norm(gram, index, 1) for index, gram in enumerate(grams)]
        while merging and (zero := first_zero(layers, zero_tolerance)) is not None:
            layers = merged(layers, zero, least_norm)
        weights = as_long_as_mean(weights_by_block(layers), grams, stack.m)
        worst = max(layer.residual for layer in layers)
        return Direction(weights, diagnostics={"kkt_residual": worst, "blocks": float(len(layers))})

    needs = Needs(
        _GRAM[level],
        losses=fair_row != "none",
        memory=_MEMORY[absent],
        reports_of_present=True,
        scale_free=lengths == "equal",
        slices=level == "slices",
    )
    return replace(stateless(weigh, needs, ["descent"]), negligible=zero_tolerance)


def _recent(stack: Stack, absent: str) -> Rows:
    """Return the present rows and the remembered ones that count."""
    oldest = participation_window(stack) if absent == "window" else _MEMORY[absent]
    return np.flatnonzero(stack.ages <= oldest)

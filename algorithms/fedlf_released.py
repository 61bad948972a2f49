"""FedLF as its authors' released code computes it (Pan et al. 2024); `fedlf` is the paper's rule.

The code differs from the paper:
- In each layer every fragment is scaled to the mean norm of the present ones, as in `fedlf` with equal lengths.
- The fair row of a layer is made of the scaled fragments, and then scaled alike: it is no fragment of g_P, and the
  whole step may point against Eq. 5.
- No layer merges.
- A direction that conflicts at model level is halved while it is over twice as long as before the final rescaling.

Deviations: the code fails on zero fragments, which are left out here. It splits weight and bias; a layer is here a
module, as in the paper.
"""

from __future__ import annotations

import math

import numpy as np

from fedsim.algorithms.mathematics.geometry import (
    as_long_as_mean,
    fair_weights,
    inverse_norms,
    mean_length,
    shortened,
)
from fedsim.algorithms.mathematics.hull import Hull
from fedsim.algorithms.mathematics.min_norm import Solution, Solver
from fedsim.algorithms.mathematics.rows import over_present
from fedsim.algorithms.mathematics.stack_views import participation_window
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Stack, stateless


def fedlf_released(*, solver: Solver = "direct") -> Algorithm:
    """Descend for every client in every layer, as the released code of FedLF does.

    Args:
        solver: of the least-norm problem: "direct", an active-set method; "cvxpy", Clarabel, a slow reference.
    """

    def weigh(stack: Stack) -> Direction:
        fair = over_present(stack, fair_weights(stack.losses[: stack.m]))
        rows = np.flatnonzero(stack.ages <= participation_window(stack))

        def least_norm(gram: Floats) -> Solution:
            fragments = inverse_norms(gram) * mean_length(gram, stack.m)
            hull = Hull(rows, fragments, fair * fragments)
            return hull.equalised(gram, stack.m, negligible=0.0).least(gram, solver)

        layers = [least_norm(gram) for gram in stack.grams]
        weights = np.stack([layer.weights for layer in layers])
        scaled = as_long_as_mean(weights, stack.grams, stack.m)
        worst = max(layer.residual for layer in layers)
        return Direction(
            shortened(scaled, weights, stack.grams, rows),
            diagnostics={"kkt_residual": worst, "blocks": float(len(layers))},
        )

    needs = Needs("blocks", losses=True, memory=math.inf, reports_of_present=True, scale_free=True)
    return stateless(weigh, needs, ["descent"])

"""What the MGDA family shares: the least-norm mixture of (normalised) updates near given weights."""

from __future__ import annotations

from typing import Literal

import numpy as np

from algorithms._geometry import inverse_norms
from algorithms._qp import Solver, min_norm
from algorithms._rows import over_present
from fedsim.stack import Direction, Floats, Stack

Lambda0 = Literal["uniform", "samples"]


def mixed(
    stack: Stack, *, normalise: bool, lambda0: Lambda0, epsilon: float, step: float, solver: Solver
) -> Direction:
    """Return `step` times the least-norm mixture whose weights differ from λ⁰ by at most `epsilon`.

    Zero rows take no part if others do not vanish: λ⁰ is divided among the rest. Without normalisation they do,
    and with epsilon = 1 nobody moves then.
    """
    gram = stack.gram()[: stack.m, : stack.m]
    scale = inverse_norms(gram) if normalise else np.ones(stack.m)
    used = np.flatnonzero(scale)
    if not len(used):
        return Direction(np.zeros(stack.n))
    centre = _centre(stack, lambda0)[used]
    centre = centre / centre.sum()
    mixture, residual = _near(
        gram[np.ix_(used, used)] * np.outer(scale[used], scale[used]), centre, epsilon, solver
    )
    weights = np.zeros(stack.m)
    weights[used] = step * mixture * scale[used]
    return Direction(over_present(stack, weights), diagnostics={"kkt_residual": residual})


def _near(gram: Floats, centre: Floats, epsilon: float, solver: Solver) -> tuple[Floats, float]:
    if epsilon == 0:
        return centre, 0.0
    if epsilon >= 1:
        return min_norm(gram, solver=solver)
    return min_norm(
        gram, lower=np.maximum(centre - epsilon, 0), upper=np.minimum(centre + epsilon, 1), solver=solver
    )


def _centre(stack: Stack, lambda0: Lambda0) -> Floats:
    if lambda0 == "uniform":
        return np.full(stack.m, 1 / stack.m)
    n_samples = stack.n_samples[: stack.m].astype(np.float64)
    return np.asarray(n_samples / n_samples.sum())

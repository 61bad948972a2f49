"""FedFV: Wang et al. 2021, "Federated Learning with Fair Averaging" (IJCAI), Algorithms 1-3.

Updates are projected off those they conflict with, in ascending order of loss (Algorithm 2), then their mean
off the remembered updates of absent clients, oldest first (Algorithm 3), and it gets the length of the plain
mean. Vectors are rows of coefficients over the updates, so inner products are products with the Gram matrix.

Deviations and choices:
- `window="paper"` is the loop of the authors' first code: ages τ..1, from step τ on, steps counted from 0.
  `window="flgo"` is that of their later framework: ages τ-1..0, which include this step's updates, from step
  τ - 1 on.
- Losses are those at the received model. Ties keep the order of the rows.
- Kept are the last m - ceil((m - 1)(1 - alpha)) of the order by loss, at least one unless alpha = 0, as in
  the code.
- `guard` is added to squared norms and to the final norm (1e-6 in the FedLF authors' platform, none in the
  paper).
- The diagnostic `projection_removed` is the share of the mean that projecting took away, before the rescaling.
- A zero update is never a target. A projected mean of norm zero, within rounding, makes no move (the code
  gives NaN).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.algorithms.mathematics.geometry import mean_of_present, norm, of_length, off_absent
from fedsim.common.option_requirements import With
from fedsim.common.rng import rng
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Stack, stateless


def fedfv(
    *,
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.1,
    tau: Annotated[int, Field(ge=0)] = 1,
    order: Literal["loss", "random", "reverse"] = "loss",
    window: Literal["paper", "flgo"] = "paper",
    guard: Annotated[float, Field(ge=0)] = 0.0,
    seed: Annotated[int, Field(ge=0, lt=2**63), With("order", "random")] = 0,
) -> Algorithm:
    """Project conflicting updates off each other, and their mean off those of clients absent for `tau` steps.

    `alpha` is the share of clients, those of largest loss, whose updates stay as they are. `order` is the
    order of the targets: ascending loss, descending loss (`reverse`) or random, drawn from `seed`, in a run
    by default that of the run, and the step.
    """
    first_step, ages = (tau, range(tau, 0, -1)) if window == "paper" else (tau - 1, range(tau - 1, -1, -1))

    def direction(stack: Stack) -> Direction:
        grams = stack.gram()[None]
        mean = mean_of_present(stack.n, stack.m)
        by_loss = np.argsort(stack.losses[: stack.m], kind="stable")
        n_kept = stack.m - math.ceil((stack.m - 1) * (1 - alpha)) if alpha > 0 else 0
        targets = {"loss": by_loss, "reverse": by_loss[::-1]}.get(order)
        if targets is None:
            targets = rng(seed, "fedfv", stack.step).permutation(stack.m)
        projected = mean[: stack.m] @ internal(grams[0], targets, by_loss[stack.m - n_kept :], guard)
        if stack.step >= first_step:
            projected = off_absent(projected[None], grams, stack.ages, ages, guard)[0]
        length = norm(mean[None], grams)
        removed = norm((mean - projected)[None], grams) / length if length > 0 else 0.0
        return Direction(
            of_length(projected[None], grams, length, guard)[0], diagnostics={"projection_removed": removed}
        )

    return stateless(direction, Needs(gram="model", losses=True, memory=ages[0] if ages else 0))


def internal(gram: Floats, targets: NDArray[np.intp], kept: NDArray[np.intp], guard: float = 0.0) -> Floats:
    """Return Algorithm 2's projected updates `[m, n]` as coefficients over the rows.

    Targets are the original updates, in the order given; the update being projected changes as it goes.
    """
    rows = np.eye(len(targets), len(gram))
    changing = np.ones(len(targets), dtype=np.bool_)
    changing[kept] = False
    for j in targets:
        inner = rows @ gram[:, j]
        conflict = changing & (inner < 0) & (gram[j, j] > 0)
        conflict[j] = False
        rows[conflict, j] -= inner[conflict] / (gram[j, j] + guard)
    return rows

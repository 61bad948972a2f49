"""FedFV: Wang et al. 2021, "Federated Learning with Fair Averaging" (IJCAI), Algorithms 1-3.

Updates are projected off those they conflict with, in ascending order of loss (Algorithm 2), then their mean
off the remembered updates of absent clients, oldest first (Algorithm 3), and it gets the length of the plain
mean. Vectors are rows of coefficients over the updates, so inner products are products with the Gram matrix.

Deviations and choices:
- Ages are τ..1, from step τ on, steps counted from 0: the loop of the authors' first code. The rule `fedfv_released`
  has that of their later code, and the small denominators of other public code.
- Losses are those at the received model. Ties keep the order of the rows.
- Kept are the last m - ceil((m - 1)(1 - alpha)) of the order by loss, at least one unless alpha = 0, as in
  the code.
- The diagnostic `projection_removed` is the share of the mean that the projections take away, before the rescaling.
- A zero update is never a target. A projected mean of norm zero, within rounding, makes no move (the code
  gives NaN).
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.algorithms.mathematics.geometry import inner_with_rows, mean_of_present, norm, of_length
from fedsim.common.option_requirements import With
from fedsim.common.rng import rng
from fedsim.server.rule import Algorithm, Direction, Floats, Ints, Needs, Stack, stateless

Order = NDArray[np.intp]


def fedfv(
    *,
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.1,
    tau: Annotated[int, Field(ge=0)] = 1,
    order: Literal["loss", "random", "reverse"] = "loss",
    seed: Annotated[int | None, Field(ge=0, lt=2**63), With("order", "random")] = None,
) -> Algorithm:
    """Project conflicting updates off each other, and their mean off those of clients absent for `tau` steps.

    Args:
        alpha: the share of clients, those of largest loss, whose updates stay as they are: m - ceil((m - 1)(1 - alpha))
            of m, none if it is 0.
        tau: τ, the largest age, in steps, of the updates of absent clients that the mean is projected off. They count
            from step τ on, steps counted from 0. With 0 none count.
        order: the order of the targets: "loss", ascending; "reverse", descending; "random", drawn anew in each step.
        seed: the seed of the random order. Without it, `seeds.train` in a run, 0 elsewhere.
    """

    def weigh(stack: Stack) -> Direction:
        by_loss = order_by_loss(stack)
        targets = {"loss": by_loss, "reverse": by_loss[::-1]}.get(order)
        if targets is None:
            targets = rng(seed or 0, "fedfv", stack.step).permutation(stack.m)
        ages = range(tau, 0, -1) if stack.step >= tau else range(0)
        return fair_average(stack, targets, alpha, ages)

    return stateless(weigh, Needs(gram="model", losses=True, memory=tau, reports_of_present=True))


def order_by_loss(stack: Stack) -> Order:
    """Return the positions of the present rows in ascending order of loss."""
    return np.argsort(stack.losses[: stack.m], kind="stable")


def fair_average(stack: Stack, targets: Order, alpha: float, ages: range, guard: float = 0.0) -> Direction:
    """Run Algorithm 1: project the updates off each other, their mean off absent clients' updates, and rescale.

    `ages` are those of the absent clients that count. `guard` is added to squared norms and to the final norm.
    """
    grams, mean = stack.gram()[None], mean_of_present(stack.n, stack.m)
    n_kept = stack.m - math.ceil((stack.m - 1) * (1 - alpha)) if alpha > 0 else 0
    kept = order_by_loss(stack)[stack.m - n_kept :]
    projected = (mean[: stack.m] @ off_each_other(grams[0], targets, kept, guard))[None]
    projected = off_absent(projected, grams, stack.ages, ages, guard)
    length = norm(mean[None], grams)
    removed = norm(mean[None] - projected, grams) / length if length > 0 else 0.0
    weights = of_length(projected, grams, length, guard)[0]
    return Direction(weights, diagnostics={"projection_removed": removed})


def off_each_other(gram: Floats, targets: Order, kept: Order, guard: float = 0.0) -> Floats:
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


def off_absent(table: Floats, grams: Floats, row_ages: Ints, ages: range, guard: float = 0.0) -> Floats:
    """Return Algorithm 3's vector: projected, age by age, off the sum of the rows that conflict with it.

    `row_ages` `[n]` are the rows' ages, `ages` those that count; the oldest comes first.
    """
    for age in sorted({age for age in row_ages.tolist() if age in ages}, reverse=True):
        inner = inner_with_rows(table, grams)
        conflict = ((row_ages == age) & (inner < 0)).astype(np.float64)
        square = float(sum(conflict @ g @ conflict for g in grams))
        if square > 0:
            table = table - (conflict @ inner) / (square + guard) * conflict
    return table

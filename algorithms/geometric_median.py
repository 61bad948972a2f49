"""RFA: Pillutla et al. 2022, "Robust Aggregation for Federated Learning" (IEEE Transactions on Signal Processing).

The step approximates the geometric median of the updates, v = argmin Σ_k α_k ‖v - g_k‖, by the smoothed Weiszfeld
algorithm (Algorithm 2): β_k = α_k / max(ν, ‖v - g_k‖), v <- Σ_k β_k g_k / Σ_k β_k. Vectors are coefficients c over the
updates, so ‖v - g_k‖² = G_kk - 2 (G c)_k + cᵀ G c.

Deviations and choices:
- Start, ν = 1e-5, four iterations and the end at a relative change of 1e-6 of Σ_k α_k ‖v - g_k‖ are those of the
  authors' code (github.com/krishnap25/RFA); their version for TensorFlow Federated has ν = 1e-6 and five passes. The
  start is the mean with the weights α.
- α_k are shares of the training samples, as in the paper and the code, or equal with `weighting="uniform"`. With shares
  of samples the median withstands hostile clients that hold less than half of the samples.
- Each iteration divides the share of an update that is very far away by about m - 1, starting from its share in the
  mean. An update m^5 times as long as the others therefore still moves the step after four. Larger attacks need more
  iterations, and a smaller `tolerance`: the relative change counts the far update's own distance.
- Below 1e-12 of the longer vector's square, ‖v - g_k‖² counts as 0; with float32 updates, distances below some 3e-4 of
  the norms are rounding.
- With the wrapper `with_absent`, the last updates of absent clients count too.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.geometry import distances_to
from fedsim.algorithms.mathematics.rows import over_present, shares
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Stack, stateless


def geometric_median(
    *,
    weighting: Literal["data", "uniform"] = "data",
    nu: Annotated[float, Field(gt=0)] = 1e-5,
    iterations: Annotated[int, Field(ge=0)] = 4,
    tolerance: Annotated[float, Field(ge=0)] = 1e-6,
) -> Algorithm:
    """Step by the geometric median of the updates, the point with the smallest sum of distances to them.

    Args:
        weighting: α_k, the weights of the distances: "data", the clients' shares of the training samples; "uniform",
            equal weights.
        nu: ν, the smallest distance ‖v - g_k‖ that counts, in the unit of the updates; smaller ones count as ν.
        iterations: how often the updates are weighted anew, at most; 0 leaves the mean with the weights α_k.
        tolerance: the iterations end at a relative change of Σ_k α_k ‖v - g_k‖ below this; at 0 all of them run.
    """

    def weigh(stack: Stack) -> Direction:
        amounts = stack.n_samples[: stack.m] if weighting == "data" else np.ones(stack.m)
        alpha = shares(amounts.astype(np.float64))
        median = weiszfeld(stack.gram()[: stack.m, : stack.m], alpha, nu, iterations, tolerance)
        return Direction(over_present(stack, median))

    return stateless(weigh, Needs(gram="model"), ["convex"])


def weiszfeld(gram: Floats, alpha: Floats, nu: float, iterations: int, tolerance: float) -> Floats:
    """Return the smoothed Weiszfeld algorithm's median `[m]` as coefficients over the rows, starting at their mean."""
    median = alpha
    distances = distances_to(median, gram)
    objective = float(alpha @ distances)
    for _ in range(iterations):
        median = shares(alpha / np.maximum(nu, distances))
        distances, before = distances_to(median, gram), objective
        objective = float(alpha @ distances)
        if abs(before - objective) < tolerance * objective:
            break
    return median

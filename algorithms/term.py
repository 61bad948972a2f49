"""TERM: Li et al. 2021, "Tilted Empirical Risk Minimization" (ICLR), tilting between clients.

The objective (1/t) log mean_k exp(t F_k) has the gradient Σ exp(t F_k) ∇F_k / Σ exp(t F_k). With few clients
per step the normaliser Z, an estimate of mean exp(t F), is smoothed over steps (the paper's stochastic
algorithm): Z <- (1 - λ) Z + λ mean exp(t F), w <- w - (1/m) Σ exp(t F_k) / Z Δ_k.

Choices, by `normaliser`:
- `running`: as above, λ = `smoothing`, starting with the first step's mean. Kept as log Z, as exp(t F)
  overflows.
- `cohort`: λ = 1: the weights of each step sum to one.

The rule `term_released` has the weights of a public federated code.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.rows import over_present, shares
from fedsim.common.option_requirements import With
from fedsim.server.rule import Algorithm, Direction, Needs, Promise, Stack, State


def term(
    *,
    t: Annotated[float, Field(gt=0)] = 1.0,
    normaliser: Literal["running", "cohort"] = "running",
    smoothing: Annotated[float, Field(gt=0, le=1), With("normaliser", "running")] = 0.5,
) -> Algorithm:
    """Weight clients by exp(t F): the larger `t`, the closer to the worst client alone.

    Args:
        t: the tilt t: close to 0 the weights are nearly equal.
        normaliser: Z, by which the weights exp(t F_k) are divided: "running", the mean of exp(t F) over the present
            clients, smoothed over steps; "cohort", that of each step alone, so that the weights of a step sum to one.
        smoothing: λ, the share of the present step in Z; 1 forgets earlier steps.
    """
    share = 1.0 if normaliser == "cohort" else smoothing

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        tilted = t * stack.losses[: stack.m]
        log_mean = np.logaddexp.reduce(tilted) - np.log(stack.m)
        log_z = float(log_mean)
        if share < 1 and state["started"]:
            log_z = float(np.logaddexp(np.log1p(-share) + state["log_z"], np.log(share) + log_mean))
        weights = np.exp(tilted - log_z) / stack.m
        if share == 1:  # equal in exact arithmetic, without the rounding of large losses
            weights = shares(np.exp(tilted - tilted.max()))
        return Direction(over_present(stack, weights)), {"log_z": log_z, "started": True}

    promises: frozenset[Promise] = frozenset({"convex"}) if normaliser == "cohort" else frozenset()
    return Algorithm(weigh, Needs(losses=True), lambda: {"log_z": 0.0, "started": False}, promises=promises)

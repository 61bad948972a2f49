"""FedExP: Jhunjhunwala et al. 2023, "FedExP: Speeding Up Federated Averaging via Extrapolation" (ICLR), Algorithm 1.

The server moves by η times the mean ḡ of the m updates, and further the more they disagree:
η = max(1, (1/m) Σ_k ‖g_k‖² / (2 (‖ḡ‖² + ε))).

Deviations and choices:
- The mean is plain, as in the paper, or weighted by training samples with `weighting="data"`, as in the authors' code
  (github.com/Divyansh03/FedExP), which weights the squared norms too.
- The code has m ε in the place of ε: multiply `epsilon` by the number of clients of a step to get its numbers. Its
  values are 1e-3 and, for EMNIST, 0.1. They depend on the size of the updates; 0 makes η independent of it.
- ε falls with the square of the clients' learning rate, as ‖g_k‖² does, where `train.lr_decay` is below 1. The code
  does the same by its decay of 0.998.
- The code evaluates the mean of the last two models, because the steps overshoot in turns. Here the last model is
  evaluated.
- With few updates of similar norms in different directions η is near m / 2, so who is absent changes the length of the
  step. The diagnostic `server_lr` is the η of the step.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.geometry import ROUNDING, bound, norm
from fedsim.algorithms.mathematics.rows import over_present, shares
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Stack, stateless


def fedexp(
    *, epsilon: Annotated[float, Field(ge=0)] = 1e-3, weighting: Literal["uniform", "data"] = "uniform"
) -> Algorithm:
    """Stretch the mean of the updates by how much they disagree, but never shorten it.

    Args:
        epsilon: ε, added to ‖ḡ‖² in the denominator of η, in units of squared updates. It keeps η bounded where the
            mean is almost zero; 0 makes η independent of the size of the updates. ε decays with the square of the
            clients' learning rate.
        weighting: the mean ḡ: "uniform", the plain mean, as in the paper; "data", weighted by training samples, as in
            the authors' code, which weights the squared norms too.
    """

    def weigh(stack: Stack) -> Direction:
        amounts = stack.n_samples[: stack.m] if weighting == "data" else np.ones(stack.m)
        mean = shares(amounts.astype(np.float64))
        small = epsilon * stack.lr_decay ** (2 * stack.step)
        factor = extrapolation(stack.gram()[: stack.m, : stack.m], mean, small)
        return Direction(over_present(stack, factor * mean), diagnostics={"server_lr": factor})

    return stateless(weigh, Needs(gram="model"))


def extrapolation(gram: Floats, mean: Floats, epsilon: float) -> float:
    """Return η for the mean of rows with the weights `mean` [m]; 1 if that mean is rounding and `epsilon` is 0."""
    square = norm(mean[None], gram[None]) ** 2
    if square <= ROUNDING * bound(mean[None], gram[None]) ** 2:
        square = 0.0
    denominator = 2 * (square + epsilon)
    return max(1.0, float(mean @ gram.diagonal()) / denominator) if denominator > 0 else 1.0

"""One family of rules that correct for who takes part: inverse probability weighting with remembered updates.

    d = Σ_S (a_k/π_k) (D_k - β H_k) + β Σ_all a_k H_k,    w <- w - d

with a_k the weight of client k in the objective, π_k the probability that it takes part in a step, S the present
clients, D_k their updates, and H_k the update that client k had sent before, 0 without one. Given the H, the mean of d
over independent draws of S is Σ a_k D_k for every β, and its variance Σ a_k² (1 - π_k)/π_k ‖D_k - β H_k‖²: β above 0
helps as far as a client's last update resembles the next one. Members of the family have files of their own:

- Horvitz-Thompson weighting: β = 0; `normalise` divides by Σ_S a_k/π_k (Hájek), so that weights add up to one.
- `fedau`: β = 0 and 1/π_k the mean number of steps between the client's uses.
- `fedvarp`, `ca2fl`: β = 1 and π = m/K. `fedstale`: a constant β.
- `mifa`, `fedlaavg`, `ace`: β = 1 and π = 1.

Choices:
- `rate` says how π is found. `known` is what the selector stated when it chose: for `uniform` among the clients online
  then, so clients that are seldom online stay under-weighted. It needs a selector that draws and, unless `normalise` is
  true, a pacing that chooses all clients of a step at once, without over-selection. `count` is the share of steps that
  used the client.
- `beta = "adaptive"` takes the β that minimises the estimated variance; no paper has it.
- A client with several updates in a step counts with their mean.
- `rescale` multiplies rows by `train.lr_decay` for each step since their model's version, so that a remembered update
  counts with the present learning rate, as in MIFA's code.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.participation import (
    Rate,
    best_beta,
    corrected,
    first_history,
    inverse_rates,
)
from fedsim.common.option_requirements import With
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Stack, State


def debiased(
    *,
    weights: Literal["uniform", "samples"] = "uniform",
    rate: Rate = "count",
    least_rate: Annotated[float, Field(ge=0, le=1), With("rate", "known", "count", "intervals")] = 0.02,
    cutoff: Annotated[int | None, Field(ge=1), With("rate", "intervals")] = None,
    beta: Annotated[float, Field(ge=0, le=1)] | Literal["adaptive"] = 0.0,
    normalise: bool = False,
    rescale: bool = False,
) -> Algorithm:
    """Weight updates by the inverse of the clients' participation rates, less `beta` times their last updates.

    Args:
        weights: a_k, the weights of the clients in the objective: "uniform", 1/K; "samples", the client's share of the
            training samples of all clients.
        rate: how π_k, the participation rate of a client, is found: "all", π = 1; "cohort", the number of updates in
            the step over K; "known", the probability that the selector stated when it chose the client; "count", the
            share of the rule's steps so far, this one included, that used the client; "intervals", the inverse of the
            mean number of steps between the client's uses before this one, the first counted from the start, and 1 as
            long as no interval is counted. "known" needs a selector that draws and, unless `normalise` is true, a
            pacing that chooses all clients of a step at once, without over-selection.
        least_rate: the lower bound of π_k; 0 sets none.
        cutoff: after this many steps without a use an interval of this length is counted, and counting begins anew.
            Without it, intervals may have any length.
        beta: β, the factor on the remembered updates H_k, which 0 leaves out; "adaptive" takes in each step the β from
            0 to 1 that minimises the estimated variance of the step.
        normalise: whether the weights a_k/π_k of present clients are divided by their sum, so that they add up to one
            (Hájek).
        rescale: whether each update, remembered or not, is multiplied by `train.lr_decay` for each step since its
            model's version, so that it counts with the present learning rate.
    """

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        inverse, after = inverse_rates(stack, state, rate, least_rate, cutoff)
        shares = objective_shares(stack, weights)
        factors = np.asarray(stack.lr_decay ** (stack.ages + stack.staleness)) if rescale else None
        amount = best_beta(stack, shares, inverse, factors) if beta == "adaptive" else beta
        if normalise:
            inverse = inverse / float(corrected(stack, shares, inverse, 0.0).sum())
        found = corrected(stack, shares, inverse, amount)
        if factors is not None:
            found = found * factors
        return Direction(found, diagnostics={"beta": amount} if beta == "adaptive" else {}), after

    memory = beta == "adaptive" or beta > 0
    needs = Needs(
        gram="model" if beta == "adaptive" else "none",
        memory=math.inf if memory else 0,
        replaced=memory and rate != "all",
        inclusion="none" if rate != "known" else "ratios" if normalise else "rates",
    )
    return Algorithm(weigh, needs, init=first_history)


def objective_shares(stack: Stack, weights: Literal["uniform", "samples"]) -> Floats:
    """Return [n] the weight in the objective of each row's client: 1/K, or its share of the training samples."""
    if weights == "uniform":
        return np.full(stack.n, 1 / stack.n_clients)
    return np.asarray(stack.n_samples / stack.total_samples)

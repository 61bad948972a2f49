"""FedFa: Huang et al. 2022, "Fairness and Accuracy in Horizontal Federated Learning" (Information Sciences).

Weights p = α A + β B, A_k and B_k the shares of -log2(acc_k / Σ acc) and -log2(1 - f_k / Σ f), with acc_k the
training accuracy of the client's own model and f_k how often it took part: inaccurate and frequent clients get
more. A server momentum follows, v <- γ v + (1 - γ) Σ p_k Δ_k, w <- w - v. (The 2024 method of the same name, a
fully asynchronous buffer, is unrelated.)

Choices, by `form`:
- `paper`: as above; 1e-6 and 1e-5 are added to the arguments of the logarithms.
- `easyfl`: the same weights, and w <- w - Σ p_k Δ_k + `server_lr` v: the momentum pulls back.
- `gfedplat`: acc_k (in percent) and f_k / (t + 1) themselves, divided by the two sums of logarithms, make the
  weights, so accurate clients get more; v <- γ v + Σ p_k Δ_k, w <- w - v, with γ = 0.9 there (0.5 in the paper).
- The paper's momentum is a double one; the clients' is `[train] momentum`, 0.9 in the paper.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.rows import over_present, shares
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import With
from fedsim.server.rule import (
    Algorithm,
    Direction,
    Floats,
    Needs,
    Stack,
    StepFacts,
    Vectors,
    VectorStep,
    stateless,
)

if TYPE_CHECKING:
    import torch

Form = Literal["paper", "easyfl", "gfedplat"]


def fedfa(
    *,
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5,
    gamma: Annotated[float, Field(ge=0, lt=1)] = 0.5,
    server_lr: Annotated[float, Field(gt=0), With("form", "easyfl")] = 0.1,
    form: Form = "paper",
) -> Algorithm:
    """Weight clients by accuracy and by frequency, and add a server momentum.

    Args:
        beta: β, the share of the frequencies in the weights p; the accuracies have the rest, α = 1 - β.
        gamma: γ, the share of the momentum v that is kept from one step to the next; 0 keeps nothing.
        server_lr: the factor on the momentum v, which is subtracted from the step.
        form: whose formulas to use: "paper", weights from logarithms, so that inaccurate and frequent clients get more,
            v <- γ v + (1 - γ) Σ p_k Δ_k and w <- w - v; "easyfl", the same weights and v, but
            w <- w - Σ p_k Δ_k + `server_lr` v; "gfedplat", the FedLF authors' platform, weights from the accuracies and
            frequencies themselves, so that accurate and frequent clients get more, v <- γ v + Σ p_k Δ_k and w <- w - v,
            with γ = 0.9 there.
    """

    def direction(stack: Stack) -> Direction:
        accuracies = _accuracies(stack)
        frequencies = stack.participations[: stack.m].astype(np.float64)
        if form == "gfedplat":
            weights = _gfedplat(100 * accuracies, frequencies / (stack.step + 1), beta)
        else:
            weights = _paper(accuracies, frequencies, beta)
        return Direction(over_present(stack, weights))

    plain = stateless(direction, Needs(after=True), ["convex"])
    return replace(plain, then=_momentum(gamma, server_lr, form))


def _accuracies(stack: Stack) -> Floats:
    """Return [m] the accuracies of the clients' own models."""
    if stack.accuracies_after is None:
        raise ConfigError("rule 'fedfa' needs 'accuracies_after', the accuracies of the clients' own models")
    return stack.accuracies_after[: stack.m]


def _rarity(frequencies: Floats, guard: float) -> Floats:
    return np.asarray(-np.log2(1 - frequencies / frequencies.sum() + guard))


def _paper(accuracies: Floats, frequencies: Floats, beta: float) -> Floats:
    by_accuracy = shares(np.maximum(-np.log2(shares(accuracies) + 1e-6), 0.0))
    by_frequency = shares(np.maximum(_rarity(frequencies, 1e-5), 0.0))
    return (1 - beta) * by_accuracy + beta * by_frequency


def _gfedplat(percent: Floats, frequencies: Floats, beta: float) -> Floats:
    accuracy = percent / float(-np.log2(shares(percent) + 1e-6).sum())
    frequency = frequencies / float(_rarity(frequencies, 1e-6).sum())
    return shares((1 - beta) * accuracy + beta * frequency)


def _momentum(gamma: float, server_lr: float, form: Form) -> VectorStep:
    fresh = 1.0 if form == "gfedplat" else 1 - gamma

    def apply(direction: torch.Tensor, vectors: Vectors, facts: StepFacts) -> tuple[torch.Tensor, Vectors]:
        momentum = fresh * direction
        if vectors:
            momentum = momentum + gamma * vectors["momentum"]
        step = direction - server_lr * momentum if form == "easyfl" else momentum
        return step, {"momentum": momentum}

    return VectorStep(apply)

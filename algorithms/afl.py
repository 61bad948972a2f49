"""AFL: Mohri et al. 2019, "Agnostic Federated Learning" (ICML), its deterministic form.

The clients' weights λ play against the model: w <- w - Σ λ_k Δ_k with the λ of before, then λ <- Π(λ + γ_λ F)
with Π the projection onto the simplex, and the model to be evaluated is the mean of all iterates (γ_w is the
clients' learning rate, which the rows contain).

Deviations and choices:
- λ starts uniform over all K clients and is indexed by client. The paper lets all of them take part in each
  step. With fewer, `partial="renormalise"` divides λ by its sum over those present, and
  `partial="importance"` multiplies λ and the losses by K/m, unbiased for uniformly drawn clients; the losses of
  absent clients count as 0 in both. If no present client has weight, the model stays and λ is still updated.
- A client with several updates in one step shares its weight among them; its loss is their mean.
- `by="place"` keeps a weight for each place in a round in place of each client, as the FedLF authors' platform does,
  which draws the clients of a round in random order. A smaller step divides the weights of its first places by their
  sum; places that a larger one adds begin with the mean weight.
- `projection="fair_flearn"` repeats a slip of the q-FFL authors' code: its condition sums one entry too few, and
  the weights leave the simplex. `"gfedplat"`, the FedLF authors' platform, adds 1e-6 to the number of entries.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.mathematics.rows import grown, over_present
from fedsim.common.errors import ConfigError
from fedsim.common.option_requirements import With
from fedsim.server.rule import Algorithm, Direction, Floats, Needs, Promise, Stack, State

Projection = Literal["exact", "fair_flearn", "gfedplat"]
_LARGE = 1e6
"""Numbers above this lose a sum of 1 to rounding; losses of a diverging model are that large."""


def afl(
    *,
    gamma_lambda: Annotated[float, Field(ge=0)] = 0.1,
    partial: Annotated[Literal["renormalise", "importance"], With("by", "client")] = "renormalise",
    by: Literal["client", "place"] = "client",
    average: bool = True,
    projection: Projection = "exact",
) -> Algorithm:
    """Minimise the loss of the worst mixture of clients; evaluates the average of the iterates.

    Args:
        gamma_lambda: γ_λ, the step size of the ascent λ <- Π(λ + γ_λ F) on the weights λ; 0 keeps them uniform.
        partial: what becomes of λ if some clients are absent from a step: "renormalise" divides it by its sum over
            those present; "importance" multiplies λ and the losses by K/m, with m the number of clients present, which
            is unbiased for uniformly drawn clients. The losses of absent clients count as 0 in both.
        by: what has a weight of its own: "client", each client; "place", each place in a round, as on the FedLF
            authors' platform.
        average: whether the mean of all iterates is evaluated; if not, the last iterate is.
        projection: Π: "exact", the nearest point of the simplex; "fair_flearn", with the slip of the q-FFL authors'
            code, whose condition sums one entry too few, so that λ may leave the simplex; "gfedplat", with 1e-6 added
            to the number of entries, as on the FedLF authors' platform.
    """

    def weigh(stack: Stack, state: State) -> tuple[Direction, State]:
        own = stack.clients[: stack.m] if by == "client" else np.arange(stack.m)
        mixture = _mixture(stack, state) if by == "client" else _mixture_of_places(stack.m, state)
        players, row, counts = np.unique(own, return_inverse=True, return_counts=True)
        factor = stack.n_clients / len(players) if partial == "importance" else 1.0
        weights = mixture[players] * factor
        if partial == "renormalise" and weights.sum() > 0:
            weights = weights / weights.sum()
        losses = np.bincount(row, stack.losses[: stack.m]) / counts
        raised = mixture.copy()
        raised[players] += gamma_lambda * factor * losses
        steps = int(state["steps"]) + 1
        direction = Direction(
            over_present(stack, (weights / counts)[row]), average=1 / steps if average else None
        )
        return direction, {"mixture": project(raised, projection), "steps": steps}

    exact = partial == "renormalise" and projection == "exact"
    promises: frozenset[Promise] = frozenset({"convex"}) if exact else frozenset()
    return Algorithm(weigh, Needs(losses=True), _start, promises=promises)


def _start() -> State:
    return {"mixture": np.zeros(0), "steps": 0}


def project(y: Floats, form: Projection = "exact") -> Floats:
    """Return the nearest point of the simplex to `y` (Duchi et al. 2008, Figure 1), or a public code's."""
    if form != "fair_flearn" and y.max() > _LARGE:
        y = y - y.max()  # the nearest point is the same, and rounds less
    u, count = np.sort(y)[::-1], np.arange(1.0, len(y) + 1)
    sums = np.cumsum(u)
    tested = sums - u if form == "fair_flearn" else sums
    last = int(np.flatnonzero(u + (1 - tested) / count > 0)[-1])
    guard = 1e-6 if form == "gfedplat" else 0.0
    return np.asarray(np.maximum(y + (1 - sums[last]) / (count[last] + guard), 0.0))


def _mixture(stack: Stack, state: State) -> Floats:
    mixture: Floats = state["mixture"]
    if not len(mixture):
        mixture = np.full(stack.n_clients, 1 / stack.n_clients)
    highest = int(stack.clients[: stack.m].max())
    if highest >= len(mixture):
        raise ConfigError(
            f"rule 'afl' keeps a weight for each of {len(mixture)} clients: expected clients 0 to "
            f"{len(mixture) - 1}, found client {highest}; give 'n_clients'"
        )
    return mixture


def _mixture_of_places(m: int, state: State) -> Floats:
    """Return a weight for each of at least m places; they add up to one."""
    mixture: Floats = state["mixture"]
    known = max(len(mixture), 1)
    return mixture if len(mixture) >= m else grown(mixture, m, 1 / known) * (known / m)

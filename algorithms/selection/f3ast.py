"""F3AST: Ribero, Vikalo and de Veciana 2022, "Federated Learning Under Intermittent Client Availability and
Time-Varying Communication Constraints"; github.com/mriberodiaz/f3ast.

r_k is a moving average of how often client k is chosen, r <- (1 - b) r + b 1{k chosen}, b = 0.01. The variance of the
unbiased estimate Σ (a_k / r_k) D_k is governed by H(r) = Σ a_k² / r_k, with a_k = n_k / Σ n, and the k candidates along
which H falls most steeply are chosen: those with the largest a_k² / r_k². The rates thus learn who is available.

The selector states the rate r_k after the choice as the inclusion probability, as the authors' code does. It estimates
the client's share of choices in the long run; the single choice is random among ties alone. A rule that weights updates
by inverse inclusion probabilities then takes the paper's step.

Deviations and choices:
- A round is a choice: where places are filled one at a time, rates are those per place.
- Rates begin at k / K, with k the places of the first choice, so that they add up to k at once, as they do in the long
  run. The authors' code begins at `initial = "samples"`, r = a, or `"equal"`, r = 1 / K, which add up to 1: its steps
  are up to k times too long at first.
- Of clients with equal index some are drawn; the code takes the lowest numbers.

Known to the server: data sizes, whom it chose.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from fedsim.algorithms.selection.parts.draws import highest
from fedsim.algorithms.selection.parts.samples import sample_shares
from fedsim.engine.selector import Choice, Floats, Selector, State, View

Initial = Literal["places", "samples", "equal"]


def f3ast(*, b: Annotated[float, Field(gt=0, lt=1)] = 0.01, initial: Initial = "places") -> Selector:
    """Choose the clients with the largest ratio of weight to rate of participation, and state the rates.

    Args:
        b: weight of the last choice in the rates r, which are moving averages of how often each client is chosen.
        initial: rates before the first choice, with K clients. "places": k / K, with k the places of the first choice,
            so that rates add up to k at once. "samples": the client's share of all samples. "equal": 1 / K. The latter
            two are those of the authors' code and add up to 1, with which the first steps are up to k times too long.
    """

    def select(view: View, k: int, rng: np.random.Generator, state: State) -> tuple[Choice, State]:
        weights = sample_shares(view, np.arange(view.n_clients))
        rate = state.get("rate", _first(initial, weights, k))
        ratio = np.divide(weights, rate, out=np.zeros_like(rate), where=weights > 0)
        chosen = highest(view.candidates, ratio[view.candidates] ** 2, k, rng)
        after = (1 - b) * rate
        after[chosen] += b
        return Choice(chosen, after[chosen]), {"rate": after}

    return Selector(select)


def _first(initial: Initial, weights: Floats, k: int) -> Floats:
    """Return the rates [K] before the first choice."""
    if initial == "samples":
        return weights
    return np.full(len(weights), (k if initial == "places" else 1) / len(weights))

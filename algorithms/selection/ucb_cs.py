"""UCB-CS: Cho, Gupta, Joshi and Yağan 2020, "Bandit-based Communication-Efficient Client Selection Strategies".

The clients with the highest index are chosen, those without a job yet first:

    A_k = p_k (L_k / M_k + √(2 σ² ln T / N_k)),

with p_k = n_k / Σ n. L_k is the discounted sum of the losses that the client reported, M_k of the reports, N_k of the
choices of the client, and T of the steps, each step weighing `gamma` times the next. A loss is the mean over the
samples that the job trained on, each before its step. σ is the largest standard deviation of these losses within one
job of the last step that used any update. In a synchronous run without losses M_k = N_k, as in the paper.

Deviations and choices:
- A step is a round. A choice counts in the step from whose model its job started, a report in the step that used it.
  Of two updates of a client that steps use between two choices, the last one counts.
- The paper has no lost jobs. Here a choice counts also if its job is lost, so that a client whose jobs never arrive
  does not stay first for ever; while it has reported nothing, its mean loss counts as the mean of the known ones.
- σ is taken over samples; the paper has it over minibatches.

Only ties are drawn, so inclusion probabilities are known. Known to the server: data sizes, losses.
"""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.algorithms.selection.parts.draws import choose_highest
from fedsim.algorithms.selection.parts.samples import sample_shares
from fedsim.engine.selector import Choice, Floats, Selector, State, View


def ucb_cs(*, gamma: Annotated[float, Field(gt=0, le=1)] = 0.7) -> Selector:
    """Choose the clients with the largest upper confidence bounds of their discounted mean losses.

    Args:
        gamma: γ, the weight of a step relative to the next one in losses and counts; 1 forgets nothing.
    """

    def select(view: View, k: int, rng: np.random.Generator, state: State) -> tuple[Choice, State]:
        after = _counted(view, state, gamma)
        return choose_highest(view.candidates, index(view, after)[view.candidates], k, rng), after

    return Selector(
        select, lambda: {"step": 0, "steps": 0.0, "sigma": 0.0}, needs=frozenset({"losses"}), draws=False
    )


def index(view: View, state: State) -> Floats:
    """Return [K] the index A_k of each client, infinite for clients that never had a job."""
    choices = state["choices"] + (view.last_dispatch == view.step)
    known = state["reports"] > 0
    means = np.divide(state["losses"], state["reports"], out=np.zeros(view.n_clients), where=known)
    means[~known] = means[known].mean() if known.any() else 0.0
    log_steps = math.log(max(state["steps"], 1.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        doubt = np.sqrt(2 * state["sigma"] ** 2 * log_steps / choices)
        bounds = sample_shares(view, np.arange(view.n_clients)) * (
            means + np.nan_to_num(doubt, posinf=np.inf)
        )
    return np.where(view.dispatched == 0, np.inf, bounds)


def _counted(view: View, state: State, gamma: float) -> State:
    """Return the state with all steps up to now counted."""
    zeros = np.zeros(view.n_clients)
    after = {"losses": zeros, "reports": zeros, "choices": zeros, **state}
    for step in range(state["step"], view.step):
        used = (view.last_step == step) & ~np.isnan(view.last_train_loss)
        after["losses"] = gamma * after["losses"] + np.where(used, view.last_train_loss, 0.0)
        after["reports"] = gamma * after["reports"] + used
        after["choices"] = gamma * after["choices"] + (view.last_dispatch == step)
        after["steps"] = gamma * after["steps"] + 1.0
        after["sigma"] = _largest_deviation(view, used) if used.any() else after["sigma"]
    return {**after, "step": view.step}


def _largest_deviation(view: View, used: NDArray[np.bool_]) -> float:
    variances = view.last_loss_rms[used] ** 2 - view.last_train_loss[used] ** 2
    return float(np.sqrt(max(np.nanmax(variances, initial=0.0), 0.0)))

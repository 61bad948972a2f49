"""Weights that correct for who takes part: one family of rules (see `fedsim.algorithms.debiased`).

With a_k the weight of client k in the objective, π_k the probability that it takes part in a step, S the present
clients, D_k their updates and H_k the update that client k had sent before:

    d = Σ_S (a_k/π_k) (D_k - β H_k) + β Σ_all a_k H_k

so present rows weigh a_k/π_k, remembered rows of absent clients β a_k, and replaced rows β a_k (1 - 1/π_k). Given the
H, the mean of d over independent draws of S is Σ a_k D_k for every β, and β changes its variance alone.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedsim.algorithms.mathematics.rows import grown, latest, room
from fedsim.common.errors import RunError
from fedsim.server.rule import Floats, Ints, Stack, State

Rate = Literal["all", "cohort", "known", "count", "intervals"]
"""How 1/π of present clients is found; see `inverse_rates`."""


def present_clients(stack: Stack) -> Ints:
    """Return the distinct present clients, in ascending order."""
    return np.unique(stack.clients[: stack.m])


def first_history() -> State:
    """Return the state of clients that took part in no step."""
    none = np.zeros(0, dtype=np.int64)
    return {"last": none, "uses": none, "intervals": none, "elapsed": none}


def inverse_rates(
    stack: Stack, state: State, rate: Rate, least: float = 0.0, cutoff: int | None = None
) -> tuple[Floats, State]:
    """Return 1/π of each present client, in ascending order of client, and the next state.

    Args:
        stack: the rows of the step.
        state: that of `first_history` at the first step.
        rate: `all` takes π = 1, `cohort` the number of updates over K, `known` what the selector stated when it chose,
            `count` the share of the rule's steps so far that used the client, and `intervals` the inverse of the mean
            number of steps between its uses before this one (1 before the first).
        least: `known`, `count` and `intervals`: π is at least this.
        cutoff: `intervals`: after so many steps without a use an interval of that length is counted.

    Raises RunError if `known` rates are not known.
    """
    clients = present_clients(stack)
    if rate in ("all", "cohort"):
        share = 1.0 if rate == "all" else stack.m / stack.n_clients
        return np.full(len(clients), 1 / share), state
    if rate == "known":
        return 1 / np.maximum(_stated(stack), least), state
    before, after = _with_step(stack, state, clients, cutoff)
    steps = stack.step + 1 - stack.first_step
    shares = after["uses"][clients] / steps if rate == "count" else _by_intervals(before)
    return 1 / np.maximum(shares, least), after


def _by_intervals(before: State) -> Floats:
    """Return the inverse of each client's mean number of steps between uses, 1 before the first interval."""
    counted = before["intervals"] > 0
    return np.where(counted, before["intervals"], 1) / np.where(counted, before["elapsed"], 1)


def _stated(stack: Stack) -> Floats:
    """Return the probability of each present client that the selector stated; of several rows, that of the last."""
    rows = latest(stack.clients[: stack.m])
    stated = np.full(len(rows), np.nan) if stack.inclusion is None else stack.inclusion[rows]
    unknown = rows[~(stated > 0)]
    if len(unknown):
        client = stack.clients[unknown[0]]
        raise RunError(
            f"step {stack.step}, client {client}: expected the probability with which the selector chose the client, "
            "found none; take a selector that states it (docs/selection.md), or rate = 'count' or 'intervals'"
        )
    return stated


def _with_step(stack: Stack, state: State, clients: Ints, cutoff: int | None) -> tuple[State, State]:
    """Return the intervals of `clients` before this step, and the state with this step's uses.

    A gap of g steps counts as whole intervals of `cutoff` steps and what is left of it, at least 1.
    """
    n, before_all = room(stack), stack.first_step - 1
    arrays = {name: grown(values, n, before_all if name == "last" else 0) for name, values in state.items()}
    gap = np.maximum(stack.step - arrays["last"][clients], 1)
    whole = np.zeros_like(gap) if cutoff is None else (gap - 1) // cutoff
    passed = whole * (cutoff or 0)
    intervals, elapsed = arrays["intervals"][clients] + whole, arrays["elapsed"][clients] + passed
    before = {"intervals": intervals, "elapsed": elapsed}
    arrays["last"][clients] = stack.step
    arrays["uses"][clients] += 1
    arrays["intervals"][clients], arrays["elapsed"][clients] = intervals + 1, elapsed + gap - passed
    return before, arrays


def corrected(stack: Stack, shares: Floats, inverse: Floats, beta: float, *, last: bool = False) -> Floats:
    """Return the weights [n] of the family's direction.

    Args:
        stack: the rows of the step.
        shares: [n] a of each row's client.
        inverse: 1/π of each present client, in ascending order of client.
        beta: how much of remembered updates to use, from 0 to 1.
        last: of a client with several present rows, take the last instead of their mean.
    """
    clients, of_row, rows = np.unique(stack.clients[: stack.m], return_inverse=True, return_counts=True)
    weights = beta * shares
    weights[: stack.m] = shares[: stack.m] * inverse[of_row] / rows[of_row]
    if last:
        kept = latest(stack.clients[: stack.m])
        weights[: stack.m] = 0.0
        weights[kept] = shares[kept] * inverse
    replaced = slice(stack.remembered.stop, stack.n)
    of_client = inverse[np.searchsorted(clients, stack.clients[replaced])]
    weights[replaced] *= 1 - of_client
    return weights


def best_beta(stack: Stack, shares: Floats, inverse: Floats, factors: Floats | None = None) -> float:
    """Return the β from 0 to 1 that minimises an estimate of the variance; 0 if no present client has sent before.

    Rows count times their `factors` [n], and of a client with several present rows their mean. The variance of d is
    Σ a² (1 - π)/π ‖D - β H‖² over all clients, and its least β is the ratio of Σ c ⟨D, H⟩ to Σ c ‖H‖² with
    c = a² (1 - π)/π. Both sums are estimated from the present clients, with c/π for c.
    """
    replaced = np.arange(stack.remembered.stop, stack.n)
    if not len(replaced):
        return 0.0
    clients, of_row, rows = np.unique(stack.clients[: stack.m], return_inverse=True, return_counts=True)
    place = np.searchsorted(clients, stack.clients[replaced])
    gram = stack.gram() if factors is None else stack.gram() * factors[:, None] * factors
    means = (of_row[:, None] == place) / rows[of_row, None]
    c = shares[replaced] ** 2 * inverse[place] * (inverse[place] - 1)
    squares = float(c @ gram[replaced, replaced])
    products = (means * gram[: stack.m, replaced]).sum(axis=0)
    return float(np.clip(c @ products / squares, 0.0, 1.0)) if squares > 0 else 0.0

"""TiFL: Chai et al. 2020, "TiFL: A Tier-based Federated Learning System" (HPDC), Algorithms 1 and 2.

Clients are sorted by the time that their jobs take into m tiers of equal size. Each choice draws one tier by its
probability and k of its clients uniformly, so the clients of a round are about equally fast. `static` (the paper's
"uniform" policy) draws tiers with equal probability, or with `odds`. `adaptive`: every I steps, if the accuracy of the
tier drawn last is not above that of I steps before, the tiers that have credits left get probabilities by rank of
accuracy, n - 1 for the worst of n, 0 for the best, over their sum n (n - 1) / 2. Drawing a tier costs it one credit.

Deviations and choices:
- Durations are measured, or expected before the first measurement, instead of a profiling phase. Tiers are rebuilt
  every I steps, and when a client appears whose duration was unknown.
- `t_max` leaves out clients that take longer (the paper's drop-outs) before tiers are built.
- A tier without candidates cannot be drawn. If no drawable tier has credits left, all tiers get theirs again; the paper
  would loop for ever. If all drawable tiers have probability 0, they are equally likely.
- A tier with fewer than k candidates yields fewer clients.
- Where evaluations are rarer than every I steps, accuracies are compared from one evaluation to the next.

Known to the server: durations, speeds at this instant; for `adaptive` the clients' accuracies at the last evaluation.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.algorithms.selection.parts.durations import duration_option, known_us
from fedsim.common.errors import ConfigError
from fedsim.engine.selector import Clients, Floats, Ints, Selector, State, View


def tifl(
    *,
    policy: Literal["static", "adaptive"] = "adaptive",
    tiers: Annotated[int, Field(ge=1)] = 5,
    odds: list[Annotated[float, Field(ge=0)]] | None = None,
    credits: Annotated[int, Field(ge=1)] | None = None,
    interval: Annotated[int, Field(ge=1)] = 10,
    t_max: str | float | None = None,
) -> Selector:
    """Choose all clients of a round from one tier of similar speed.

    Args:
        policy: how tiers are drawn. "static": always with the probabilities `odds`. "adaptive": begins with `odds`; if
            the accuracy of the tier drawn last has not risen since the last check, tiers get probabilities by rank of
            accuracy, the worst the highest.
        tiers: m, the number of tiers, which have equal size.
        odds: first probabilities of the tiers, fastest first, up to a factor; None: all equal (the paper's "uniform"
            policy, if "static").
        credits: how often each tier may be drawn; if no tier has any left, all get theirs again. None: no limit.
        interval: I, the server steps from one building of the tiers to the next, and between checks of "adaptive".
        t_max: longest duration of a job; clients that take longer are left out (the paper's drop-outs). None: no limit.
    """
    limit_us = np.inf if t_max is None else duration_option("tifl", "t_max", t_max)
    first = np.ones(tiers) if odds is None else np.asarray(odds, dtype=np.float64)
    if len(first) != tiers or not first.any():
        raise ConfigError(
            f"selector 'tifl', option 'odds': expected {tiers} numbers, not all 0, found {odds!r}"
        )

    def start() -> State:
        allowance = np.full(tiers, -1 if credits is None else credits, dtype=np.int64)
        return {"odds": first / first.sum(), "credits": allowance, "drawn": -1, "checked": 0}

    def select(view: View, k: int, rng: np.random.Generator, state: State) -> tuple[Clients, State]:
        known = known_us(view)
        after = _tiered(view, known, state, tiers, interval, limit_us)
        if policy == "adaptive":
            after = _adapted(view, after, interval)
        tier = after["tier"][view.candidates]
        tier[known[view.candidates] > limit_us] = -1
        if (tier < 0).all():
            return view.candidates[:0], after
        after = _drawn(np.bincount(tier[tier >= 0], minlength=tiers) > 0, after, credits, rng)
        return rng.permutation(view.candidates[tier == after["drawn"]])[:k], after

    return Selector(select, start, needs=frozenset({"accuracy"}) if policy == "adaptive" else frozenset())


def _tiered(view: View, known: Floats, state: State, tiers: int, interval: int, limit_us: float) -> State:
    """Return the state with current durations and, if they are due, new tiers of the clients within the limit."""
    before = state.get("known_us", np.full(view.n_clients, np.nan))
    now = np.where(np.isnan(known), before, known)
    due = "tier" not in state or view.step >= state["tiered"] + interval
    fits = now <= limit_us
    if not due and ((state["tier"] >= 0) | ~fits)[view.candidates].all():
        return {**state, "known_us": now}
    tier = np.full(view.n_clients, -1, dtype=np.int64)
    by_time = np.argsort(now, kind="stable")
    by_time = by_time[fits[by_time]]
    for number, members in enumerate(np.array_split(by_time, tiers)):
        tier[members] = number
    return {**state, "known_us": now, "tier": tier, "tiered": view.step}


def _adapted(view: View, state: State, interval: int) -> State:
    """Return the state with new probabilities, if they are due and the tier drawn last did not improve.

    They are due `interval` steps after the last time, once there is an evaluation since then.
    """
    evaluated = int(view.accuracy_step.max())
    if evaluated < 0 or (
        "accuracy" in state and (view.step < state["checked"] + interval or evaluated <= state["evaluated"])
    ):
        return state
    accuracy = _accuracies(view, state["tier"], len(state["odds"]))
    now = {**state, "accuracy": accuracy, "checked": view.step, "evaluated": evaluated}
    drawn = state["drawn"]
    if "accuracy" not in state or drawn < 0 or accuracy[drawn] > state["accuracy"][drawn]:
        return now
    return {**now, "odds": ranked_odds(accuracy, state["credits"])}


def ranked_odds(accuracy: Floats, credits: Ints) -> Floats:
    """Return the probabilities of the tiers [m]: the worst gets most, those without credits 0 (negative: no limit)."""
    rated = np.flatnonzero((credits != 0) & ~np.isnan(accuracy))
    odds = np.zeros(len(accuracy))
    by_accuracy = rated[np.argsort(accuracy[rated], kind="stable")]
    odds[by_accuracy] = np.arange(len(rated))[::-1]
    return np.asarray(odds / odds.sum()) if len(rated) > 1 else np.where(credits != 0, 1.0, 0.0)


def _accuracies(view: View, tier: Ints, tiers: int) -> Floats:
    known = (tier >= 0) & ~np.isnan(view.accuracy)
    count = np.bincount(tier[known], minlength=tiers)
    total = np.bincount(tier[known], view.accuracy[known], minlength=tiers)
    return np.asarray(np.divide(total, count, out=np.full(tiers, np.nan), where=count > 0))


def _drawn(drawable: NDArray[np.bool_], state: State, credits: int | None, rng: np.random.Generator) -> State:
    """Draw one of the `drawable` [m] tiers, which pays a credit; returns the state."""
    left = state["credits"]
    if not (drawable & (left != 0)).any():
        left = np.full(len(left), credits, dtype=np.int64)
    payable = drawable & (left != 0)
    odds = np.where(payable, state["odds"], 0.0)
    odds = odds if odds.any() else payable.astype(np.float64)
    drawn = int(rng.choice(len(odds), p=odds / odds.sum()))
    paid = left - (np.arange(len(left)) == drawn) * (left > 0)
    return {**state, "credits": paid, "drawn": drawn}

"""Orders and draws that selectors share. Ties are broken at random, never by a client's number."""

from __future__ import annotations

import numpy as np

from fedsim.engine.selector import Choice, Clients, Floats, Ints

_ROUNDING = 1e-9
"""Chances this close to 1 are 1 up to rounding."""


def highest(clients: Clients, scores: Floats | Ints, k: int, rng: np.random.Generator) -> Clients:
    """Return the `k` clients with the highest scores, best first; clients with a score of NaN come last."""
    mixed = rng.permutation(len(clients))
    keys = -np.asarray(scores, dtype=np.float64)[mixed]  # NaN sorts behind everything
    return clients[mixed[np.argsort(keys, kind="stable")[:k]]]


def lowest(clients: Clients, scores: Floats | Ints, k: int, rng: np.random.Generator) -> Clients:
    """Return the `k` clients with the lowest scores, lowest first; clients with a score of NaN come last."""
    return highest(clients, -np.asarray(scores, dtype=np.float64), k, rng)


def choose_highest(clients: Clients, scores: Floats | Ints, k: int, rng: np.random.Generator) -> Choice:
    """Choose the `k` clients with the highest scores, as `highest` does, and state their inclusion probabilities."""
    keys = np.asarray(scores, dtype=np.float64)
    places = highest(np.arange(len(clients)), keys, k, rng)
    return Choice(clients[places], share_of_ties(keys, places))


def choose_lowest(clients: Clients, scores: Floats | Ints, k: int, rng: np.random.Generator) -> Choice:
    """Choose the `k` clients with the lowest scores, as `lowest` does, and state their inclusion probabilities."""
    return choose_highest(clients, -np.asarray(scores, dtype=np.float64), k, rng)


def share_of_ties(keys: Floats | Ints, taken: Ints) -> Floats:
    """Return the inclusion probability of each of the places `taken` where only ties of `keys` are drawn.

    The keys decide how many of those with an equal key are taken, which are then equally likely: their share.
    """
    _, tie = np.unique(keys, return_inverse=True)
    return np.asarray((np.bincount(tie[taken], minlength=tie.max() + 1) / np.bincount(tie))[tie[taken]])


def optimistic(values: Floats) -> Floats:
    """Return the values with the largest known one, or 1, in place of those that are unknown or infinite."""
    known = np.isfinite(values)
    return np.where(known, values, values[known].max() if known.any() else 1.0)


def proportional(clients: Clients, weights: Floats | Ints, k: int, rng: np.random.Generator) -> Clients:
    """Draw `k` clients one after another without replacement, each time in proportion to the weights left.

    Weights are at least 0; clients of weight 0 are drawn when no others are left. The first of independent
    exponential clocks to ring has just this law (Efraimidis and Spirakis 2006).
    """
    clocks = rng.standard_exponential(len(clients))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        rings = clocks / np.asarray(weights, dtype=np.float64)
    return clients[np.lexsort((clocks, rings))[:k]]


def systematic(clients: Clients, chances: Floats, rng: np.random.Generator) -> Choice:
    """Draw clients of which each is included with exactly its chance; as many as the chances add up to.

    Systematic sampling in a random order (Madow 1949). Chances are at most 1 and add up to a whole number; those that
    differ from 1 by rounding alone count as 1.
    """
    sure = chances > 1 - _ROUNDING
    left = round(float(chances.sum())) - int(sure.sum())
    mixed = rng.permutation(np.flatnonzero(~sure))
    ends = np.cumsum(chances[mixed])
    if left < 1 or not len(mixed):
        return Choice.certain(clients[sure])
    scale = left / ends[-1]  # 1 up to rounding
    points = np.minimum(rng.random() + np.arange(left), np.nextafter(left, 0))
    drawn = mixed[np.searchsorted(ends * scale, points, side="right")]
    chosen = np.concatenate([np.flatnonzero(sure), drawn])
    return Choice(clients[chosen], np.where(sure, 1.0, chances * scale)[chosen])


def share_of(n: int, share: float) -> int:
    """Return `share` of `n`, rounded down: 29 % of 100 are 29, although 0.29 * 100 < 29 in floating point."""
    return int(round(n * share, 9))


def part(k: int, share: float, rng: np.random.Generator) -> int:
    """Return `share` of `k` places, rounded down; less than one place is the probability of one.

    The share then also holds if places are filled one at a time, as in buffered and asynchronous pacing.
    """
    places = round(k * share, 9)
    return int(places) if places >= 1 else int(places > 0 and rng.random() < places)


def others(clients: Clients, chosen: Clients) -> Clients:
    """Return `clients` without those `chosen`, in their order."""
    return clients[~np.isin(clients, chosen)]


def topped_up(chosen: Clients, clients: Clients, k: int, rng: np.random.Generator) -> Clients:
    """Return `chosen`, followed by clients drawn uniformly from the rest: `k` in all, or all clients."""
    rest = others(clients, chosen)
    return np.concatenate([chosen, rng.permutation(rest)[: max(k - len(chosen), 0)]])

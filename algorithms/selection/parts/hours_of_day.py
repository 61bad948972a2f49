"""Learning the hours of the day at which clients are online, from one observation per choice of a server.

An observation counts for the time since the one before, an hour at most, in the hour of the day at which it happens.
Clients that work count neither as online nor as offline. Nor do clients that had a job since the last step and may not
be chosen: their updates may wait for the next step. The hour of the day is that of the virtual clock; its origin does
not matter.

The chance that client i is online in hour h is p = (seen + q) / (watched + 1), in hours, with its chance over all hours
q = (Σ seen + 1) / (Σ watched + 2). An unobserved hour thus counts as one hour of the client's own mean.
"""

from __future__ import annotations

import numpy as np

from fedsim.common.units import HOUR_US
from fedsim.engine.selector import Clients, Floats, Ints, State, View

HOURS = 24


def looked(view: View, state: State) -> State:
    """Return the state after another observation: `seen` and `watched` [K, 24] in hours, and `looked_us`."""
    if "seen" not in state:
        empty = np.zeros((view.n_clients, HOURS))
        state = {**state, "seen": empty, "watched": empty, "looked_us": view.now_us - HOUR_US}
    seen, watched = state["seen"].copy(), state["watched"].copy()
    weight = min((view.now_us - state["looked_us"]) / HOUR_US, 1.0)
    hour = view.now_us // HOUR_US % HOURS
    may_wait = view.last_dispatch == view.step
    may_wait[view.candidates] = False
    watched[~(view.busy | may_wait), hour] += weight
    seen[view.candidates, hour] += weight
    return {**state, "seen": seen, "watched": watched, "looked_us": view.now_us}


def chances(state: State, clients: Clients, start_us: Ints, end_us: Ints) -> Floats:
    """Return [c] the chance that each client is online at an instant between `start_us` and `end_us` [c], or [1]."""
    seen, watched = state["seen"][clients], state["watched"][clients]
    mean = (seen.sum(axis=1) + 1) / (watched.sum(axis=1) + 2)
    by_hour = (seen + mean[:, None]) / (watched + 1)
    return np.asarray((by_hour * overlaps(start_us, end_us)).sum(axis=1))


def overlaps(start_us: Ints, end_us: Ints) -> Floats:
    """Return [c, 24] the share of each interval of at least a microsecond that lies in each hour of the day."""
    end_us = np.maximum(end_us, start_us + 1)
    spent = _until(end_us) - _until(start_us)
    return np.asarray(spent / (end_us - start_us)[:, None])


def _until(t_us: Ints) -> Ints:
    days, rest = np.divmod(t_us, HOURS * HOUR_US)
    part = np.clip(rest[:, None] - np.arange(HOURS) * HOUR_US, 0, HOUR_US)
    return np.asarray(days[:, None] * HOUR_US + part)

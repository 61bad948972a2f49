"""What a selector sees and returns. A selector is a plug-in under `algorithms/selection/`, one strategy per file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Clients = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class View:
    """What a real server could know when it chooses; arrays are read-only and indexed by client unless said.

    No field tells anything about the future of the world.
    """

    now_us: int
    step: int
    """Server steps taken so far."""
    candidates: Clients
    """[c] clients that are online and idle now, in ascending order, at least one."""
    n_samples: NDArray[np.int64]
    """[K] training samples of each client."""
    dispatched: NDArray[np.int64]
    """[K] jobs given to each client so far."""
    received: NDArray[np.int64]
    """[K] updates received from each client so far."""


Selector = Callable[[View, int, np.random.Generator], Clients]
"""`select(view, k, rng)` returns `k` distinct members of `view.candidates`, with 1 <= k <= len(candidates)."""


def checked(chosen: Clients, view: View, k: int) -> Clients:
    """Return `chosen` if it keeps the contract of a Selector, else raise ValueError."""
    if len(chosen) != k or len(np.unique(chosen)) != k or not np.isin(chosen, view.candidates).all():
        raise ValueError(
            f"a selector must return {k} distinct candidates, it returned {chosen.tolist()[:20]}"
        )
    return chosen

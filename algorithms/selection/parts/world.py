"""The future of a world, for clairvoyant selectors."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from fedsim.common.arrays import Mask
from fedsim.common.errors import TraceError


class Future(Protocol):
    """The part of `fedsim.worlds.world.World` that selectors use."""

    def online(self, t_us: int) -> Mask:
        """Return [K] whether each client is online at an instant."""

    def next_change(self, t_us: int) -> int | None:
        """Return the earliest time after `t_us` at which the state of a client may change, or None."""


def online_throughout(world: Future, start_us: int, end_us: int) -> Mask:
    """Return [K] whether each client is online during all of [start_us, end_us); none is if the world ends before.

    The cost grows with the changes of all clients' states in between.
    """
    online: Mask = np.zeros(0, dtype=bool)
    now: int | None = start_us
    try:
        while now is not None and now < end_us:
            online = world.online(now) & online if now > start_us else world.online(now).copy()
            now = world.next_change(now) if online.any() else None
    except TraceError:
        return np.zeros_like(world.online(0))
    return online

"""The future, for clairvoyant selectors: questions to a world."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.common.errors import TraceError

Mask = NDArray[np.bool_]


class Future(Protocol):
    """What is asked of a `fedsim.worlds.world.World`."""

    def online(self, t_us: int) -> Mask:
        """Return [K] who is online at an instant."""

    def next_change(self, t_us: int) -> int | None:
        """Return the earliest time after `t_us` at which somebody's state may change, or None."""


def online_throughout(world: Future, start_us: int, end_us: int) -> Mask:
    """Return [K] who is online at every instant of [start_us, end_us); nobody if the world ends before that.

    It asks at every change of anybody's state in between: in a large world, long slots take their time.
    """
    there: Mask = np.zeros(0, dtype=bool)
    now: int | None = start_us
    try:
        while now is not None and now < end_us:
            there = world.online(now) & there if now > start_us else world.online(now).copy()
            now = world.next_change(now) if there.any() else None
    except TraceError:
        return np.zeros_like(world.online(0))
    return there

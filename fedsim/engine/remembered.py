"""Whose updates the server remembers, as far as the event loop knows without the history itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.common.arrays import Ints, Mask
from fedsim.training.job import Cohort


@dataclass(frozen=True, slots=True)
class Memory:
    """How long a server remembers updates of absent clients, and how many."""

    steps: float = 0
    """Server steps; 0: it remembers none."""
    time_us: int = 0
    """Virtual time; 0: any."""
    most: int | None = None
    """Most updates; None: one of each client."""


@dataclass(slots=True)
class Remembered:
    """When the update that the server remembers of each client was received, as arrays [K].

    An update that the server leaves out because it is not finite counts too: the event loop learns of that later.
    """

    step: Ints
    """The server step, of a late update that of its model; -1 without one."""
    time_us: Ints

    @staticmethod
    def of(n: int) -> Remembered:
        """Return the state before any step."""
        return Remembered(np.full(n, -1, dtype=np.int64), np.full(n, -1, dtype=np.int64))

    def held(self, memory: Memory, step: int, now_us: int) -> Mask:
        """Return [K] whether the server remembers an update of each client at a step and a time."""
        recent = (self.step >= 0) & (step - self.step <= memory.steps)
        if memory.time_us:
            recent &= now_us - self.time_us <= memory.time_us
        return np.asarray(recent)

    def keep(self, memory: Memory, cohort: Cohort, present: int, step: int, now_us: int) -> None:
        """Remember the updates of a step, and forget the oldest beyond the memory's `most`.

        The first `present` jobs of the cohort are those of the step; the others came late, and count from their models'
        versions. Of a client's updates the last counts.
        """
        if not memory.steps:
            return
        order = np.argsort(cohort.versions[present:], kind="stable") + present
        clients = np.concatenate([cohort.clients[order], cohort.clients[:present]])
        self.step[clients] = np.concatenate([cohort.versions[order], np.full(present, step)])
        self.time_us[clients] = now_us
        if memory.most is None or memory.most >= len(self.step):
            return
        alive = np.flatnonzero(self.held(memory, step + 1, now_us))
        excess = len(alive) - memory.most
        if excess > 0:
            by_age = np.lexsort((alive, self.time_us[alive], self.step[alive]))
            self.step[alive[by_age[:excess]]] = -1

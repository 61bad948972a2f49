"""The oracle audit: at chosen steps clients train once more, for the record alone, from the model that they would be
given now. So what is remembered of them can be compared with what they would send.

A real server could not do this. It changes nothing of the run: no table but `audit.parquet` knows of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.common.rng import rng
from fedsim.engine.client_records import ClientRecords
from fedsim.training.job import Cohort

_PART_BYTES = 64 * 2**20
LOSSES = ("loss_before", "loss_after")
"""Columns that need both models: that before the step and that after it."""


@dataclass(frozen=True, slots=True)
class Audit:
    """When and whom to audit."""

    every: int
    """Server steps from one audit to the next; the first is at step `every`."""
    clients: int
    """Most clients of one audit."""
    memory: float
    """Server steps for which the rule remembers a row."""
    seed: int

    def cohort(self, step: int, now_us: int, records: ClientRecords) -> Cohort | None:
        """Return the jobs that clients would be given now, None at a step without an audit.

        Those go first whose rows the server has: present ones, and absent ones that the rule remembers. The others
        fill up what is left. Jobs are the clients' next ones, with numbers below zero.
        """
        if step == 0 or step % self.every:
            return None
        age = step - records.last_step
        held = (records.last_step >= 0) & (age <= self.memory)
        draws = rng(self.seed, "audit", step)
        order = np.concatenate([draws.permutation(np.flatnonzero(group)) for group in (held, ~held)])
        clients = np.sort(order[: self.clients])
        same = np.ones(len(clients), dtype=np.int64)
        return Cohort(
            ids=-1 - np.arange(len(clients)),
            clients=clients,
            nths=records.dispatched[clients].astype(np.int64),
            versions=same * step,
            shares=np.ones(len(clients)),
            dispatch_us=same * now_us,
        )


def parts_of(cohort: Cohort, row_bytes: int, least: int = 1) -> list[Cohort]:
    """Cut the jobs of an audit into at least so many parts whose rows do not take much memory."""
    most = max(1, _PART_BYTES // row_bytes)
    n = min(max(least, -(-len(cohort) // most)), len(cohort))
    return [cohort.part(which) for which in np.array_split(np.arange(len(cohort)), n)] if n else []

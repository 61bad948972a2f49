"""The oracle audit: at chosen steps, clients train one extra job from the current model, only to be recorded.

The audit compares the update that the server's history holds for a client with the update that the client would send
now. A real server could not do this. An audit changes nothing in the run; only `audit.parquet` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsim.common.arrays import Ints, Mask
from fedsim.common.rng import rng
from fedsim.engine.client_records import ClientRecords
from fedsim.engine.costs import Costs
from fedsim.engine.remembered import Memory, Remembered
from fedsim.training.job import Cohort

_PART_BYTES = 64 * 2**20
"""Most bytes of updates in one part of an audit."""
LOSSES = ("loss_before", "loss_after")
"""Columns of `audit.parquet` that need both the model before the step and the model after it."""


@dataclass(frozen=True, slots=True)
class Audit:
    """When the audits take place and how many clients they take."""

    every: int
    """Server steps between audits; the first takes place at step `every`."""
    clients: int
    """Most clients in one audit."""
    seed: int

    def of_step(
        self,
        step: int,
        now_us: int,
        records: ClientRecords,
        remembered: Remembered,
        memory: Memory,
        costs: Costs,
        arrived: Ints,
    ) -> Cohort | None:
        """Return the audit's jobs at the step that uses updates of the clients `arrived`; None if it has no audit."""
        if step == 0 or step % self.every:
            return None
        held = remembered.held(memory, step, now_us)
        held[arrived] = True
        return self.cohort(step, now_us, records, costs, held)

    def cohort(self, step: int, now_us: int, records: ClientRecords, costs: Costs, held: Mask) -> Cohort:
        """Return the audit's jobs at a step.

        Clients whose update the server has, `held` [K], come first: those in the step, and absent ones in the history.
        Other clients fill the remaining places. Each job is the client's next one, with a negative id; a deadline cuts
        none short.
        """
        draws = rng(self.seed, "audit", step)
        order = np.concatenate([draws.permutation(np.flatnonzero(group)) for group in (held, ~held)])
        clients = np.sort(order[: self.clients])
        nths = records.dispatched[clients].astype(np.int64)
        return Cohort(
            ids=-1 - np.arange(len(clients)),
            clients=clients,
            nths=nths,
            versions=np.full(len(clients), step, dtype=np.int64),
            shares=costs.shares(clients, nths),
            dispatch_us=np.full(len(clients), now_us, dtype=np.int64),
        )


def parts_of(cohort: Cohort, row_bytes: int, least: int = 1) -> list[Cohort]:
    """Split an audit's jobs into at least `least` parts, so that the updates of one part fit in 64 MiB.

    `row_bytes` is the size of one update. A part holds at least one job.
    """
    most = max(1, _PART_BYTES // row_bytes)
    n = min(max(least, -(-len(cohort) // most)), len(cohort))
    return [cohort.part(which) for which in np.array_split(np.arange(len(cohort)), n)] if n else []

"""Pacing: when the server steps and when it dispatches, from synchronous to fully asynchronous training.

| preset                  | concurrency | buffer | deadline | refill  | late |
|-------------------------|-------------|--------|----------|---------|------|
| `sync(m)`               | m           | m      | none     | step    | drop |
| `overselect(m, extra)`  | m + extra   | m      | none     | step    | drop |
| `deadline(m, t)`        | m           | m      | t        | step    | drop |
| `fedbuff(M, K)`         | M           | K      | none     | arrival | keep |
| `fedasync(M)`           | M           | 1      | none     | arrival | keep |
| `periodic(M, t)`        | M           | none   | t        | step    | keep |

Any field may be changed. `docs/pacing.md` defines each one. Staleness discounts belong to the aggregation rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Preset = Literal["sync", "overselect", "deadline", "fedbuff", "fedasync", "periodic"]
"""The functions of this file that make a Pacing."""
Refill = Literal["step", "arrival"]
Late = Literal["drop", "keep", "history"]


@dataclass(frozen=True, slots=True)
class Pacing:
    """The pacing of a run. All presets are values of this class. Raises ValueError if the fields contradict."""

    concurrency: int
    """Most jobs in flight at once; with `late = "history"`, most jobs of one cohort."""
    buffer: int | None
    """Number of arrived updates that triggers a step; None: only the deadline does."""
    deadline_us: int | None = None
    """Longest time from the dispatch of a cohort (`late = "keep"`: from the previous step) to the next step."""
    refill: Refill = "step"
    """`step`: a cohort is dispatched right after each step. `arrival`: each free place is filled at once."""
    late: Late = "drop"
    """What a step does to jobs still running: `drop` cancels them, `keep` lets them count for a later step, `history`
    lets them finish and refresh the history, without a place in the cohort and without weight."""
    minimum: int = 0
    """A deadline with fewer updates makes a void step, which drops them and leaves the model unchanged; with
    `late = "keep"` they stay, and the deadline starts again."""
    max_staleness: int | None = None
    """Updates that arrive with more steps of staleness are dropped; None: no limit."""
    least_candidates: int = 1
    """The server dispatches nothing while there are fewer candidates."""

    def __post_init__(self) -> None:
        problems = [
            f"{name} must be at least {least}, found {value}"
            for name, value, least in (
                ("concurrency", self.concurrency, 1),
                ("buffer", self.buffer, 1),
                ("deadline", self.deadline_us, 1),
                ("minimum", self.minimum, 0),
                ("max_staleness", self.max_staleness, 0),
                ("least_candidates", self.least_candidates, 1),
            )
            if value is not None and value < least
        ]
        if self.buffer is None and self.deadline_us is None:
            problems.append("without a buffer there must be a deadline, or the server would never step")
        elif self.buffer is not None and self.buffer > self.concurrency:
            problems.append(
                f"buffer ({self.buffer}) is larger than concurrency ({self.concurrency}): it would never fill"
            )
        if self.refill == "arrival" and self.late != "keep":
            problems.append('refill = "arrival" keeps clients working across steps, so late must be "keep"')
        if self.refill == "arrival" and self.buffer is None:
            problems.append('refill = "arrival" without a buffer would let a step have any number of updates')
        if self.minimum and self.deadline_us is None:
            problems.append("minimum applies at a deadline, and there is no deadline")
        elif self.minimum > min(self.concurrency, self.buffer or self.concurrency):
            problems.append(f"minimum ({self.minimum}) is more than one step can take")
        if problems:
            raise ValueError("\n".join(problems))

    @property
    def cancels(self) -> bool:
        """Whether a step ends all running jobs, so that dispatch already knows which of them a step can use."""
        return self.late == "drop"

    @property
    def most_updates(self) -> int:
        """Most updates that one step can take: without a buffer, all jobs in flight may arrive by one deadline."""
        return self.concurrency if self.buffer is None else self.buffer


def sync(clients: int) -> Pacing:
    """Choose `clients` and wait for all whose jobs are not lost (FedAvg)."""
    return Pacing(clients, clients)


def overselect(clients: int, extra: int) -> Pacing:
    """Choose `clients + extra`, step when the first `clients` have arrived, cancel the rest (Bonawitz et al. 2019)."""
    return Pacing(clients + extra, clients)


def deadline(clients: int, deadline_us: int) -> Pacing:
    """Like `sync`, but step at the deadline with the updates that have arrived and cancel the other jobs."""
    return Pacing(clients, clients, deadline_us=deadline_us)


def fedbuff(concurrency: int, buffer: int) -> Pacing:
    """Keep `concurrency` clients working and step at every `buffer` updates (FedBuff, AISTATS 2022)."""
    return Pacing(concurrency, buffer, refill="arrival", late="keep")


def fedasync(concurrency: int) -> Pacing:
    """Keep `concurrency` clients working and step at every update (FedAsync, 2019)."""
    return Pacing(concurrency, 1, refill="arrival", late="keep")


def periodic(concurrency: int, deadline_us: int) -> Pacing:
    """Step every `deadline_us` with the updates that have arrived, and dispatch only then."""
    return Pacing(concurrency, None, deadline_us=deadline_us, late="keep")


def extra_of(clients: int, factor: float) -> int:
    """Return how many clients beyond `clients` an over-selection `factor` such as 1.3 chooses."""
    return math.ceil(round(clients * (factor - 1), 9))

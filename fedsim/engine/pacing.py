"""When the server steps and when it hands out work: synchronous to fully asynchronous training as values of one object.

| preset                  | concurrency | buffer | deadline | refill  | late |
|-------------------------|-------------|--------|----------|---------|------|
| `sync(m)`               | m           | m      | none     | step    | drop |
| `overselect(m, extra)`  | m + extra   | m      | none     | step    | drop |
| `deadline(m, t)`        | m           | m      | t        | step    | drop |
| `fedbuff(M, K)`         | M           | K      | none     | arrival | keep |
| `fedasync(M)`           | M           | 1      | none     | arrival | keep |
| `periodic(M, t)`        | M           | none   | t        | step    | keep |

Any field may be changed. What they mean, exactly, is in `docs/pacing.md`. Staleness discounts belong to the rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Refill = Literal["step", "arrival"]
Late = Literal["drop", "keep", "history"]


@dataclass(frozen=True, slots=True)
class Pacing:
    """The timing of a run. All presets are values of this one class."""

    concurrency: int
    """Most jobs in flight at once; with `late = "history"`, of one cohort."""
    buffer: int | None
    """Arrived updates that make a step; None: they are never counted."""
    deadline_us: int | None = None
    """A step happens this long after a cohort was handed out (`late = "keep"`: after the step before) at the latest."""
    refill: Refill = "step"
    """`step`: a cohort is chosen right after each step. `arrival`: each place that falls free is filled at once."""
    late: Late = "drop"
    """What happens at a step to jobs still running: `drop` cancels them, `keep` lets them count for a later step,
    `history` lets them finish and refresh the gradient history, without a place in the cohort and without weight."""
    minimum: int = 0
    """A deadline that finds fewer updates makes a void step, which leaves the model as it is and drops them; with
    `late = "keep"` they stay, and the deadline begins anew."""
    max_staleness: int | None = None
    """Updates that are older by more steps when they arrive are dropped."""
    least_candidates: int = 1
    """Nobody is handed work while fewer clients may be chosen."""

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
            problems.append("minimum says what a deadline needs, and there is no deadline")
        elif self.minimum > min(self.concurrency, self.buffer or self.concurrency):
            problems.append(f"minimum ({self.minimum}) is more than a step can have")
        if problems:
            raise ValueError("\n".join(problems))

    @property
    def cancels(self) -> bool:
        """Whether a step ends all running jobs, so that the fate of a cohort is known when it is chosen."""
        return self.late == "drop"

    @property
    def most_updates(self) -> int:
        """Most updates that one step can have: all that are in flight may arrive at one deadline."""
        return self.concurrency if self.buffer is None else self.buffer


def sync(clients: int) -> Pacing:
    """Wait for every one of `clients` chosen clients that is not lost (FedAvg's own timing)."""
    return Pacing(clients, clients)


def overselect(clients: int, extra: int) -> Pacing:
    """Choose `clients + extra`, step when the first `clients` have arrived, cancel the rest (Bonawitz et al. 2019)."""
    return Pacing(clients + extra, clients)


def deadline(clients: int, deadline_us: int) -> Pacing:
    """Like `sync`, but step at the deadline with whoever has arrived and cancel the rest."""
    return Pacing(clients, clients, deadline_us=deadline_us)


def fedbuff(concurrency: int, buffer: int) -> Pacing:
    """Keep `concurrency` clients working and step at every `buffer` updates (FedBuff, AISTATS 2022)."""
    return Pacing(concurrency, buffer, refill="arrival", late="keep")


def fedasync(concurrency: int) -> Pacing:
    """Keep `concurrency` clients working and step at every update (FedAsync, 2019)."""
    return Pacing(concurrency, 1, refill="arrival", late="keep")


def periodic(concurrency: int, deadline_us: int) -> Pacing:
    """Step every `deadline_us` with what has arrived by then, and hand free places out only then."""
    return Pacing(concurrency, None, deadline_us=deadline_us, late="keep")


def extra_of(clients: int, factor: float) -> int:
    """Return how many more than `clients` a factor of over-selection such as 1.3 chooses."""
    return math.ceil(round(clients * (factor - 1), 9))

"""When the server steps and when it hands out work: synchronous to buffered training as values of one object.

| preset                  | concurrency | buffer | deadline | refill  | late       |
|-------------------------|-------------|--------|----------|---------|------------|
| `sync(m)`               | m           | m      | none     | step    | drop       |
| `overselect(m, extra)`  | m + extra   | m      | none     | step    | drop       |
| `deadline(m, t)`        | m           | m      | t        | step    | drop       |
| `fedbuff(M, K)`         | M           | K      | none     | arrival | keep       |

Staleness discounts belong to the rule, not to pacing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Refill = Literal["step", "arrival"]
Late = Literal["drop", "keep"]


@dataclass(frozen=True, slots=True)
class Pacing:
    """The timing of a run. All presets are values of this one class."""

    concurrency: int
    """Most jobs in flight at once."""
    buffer: int
    """Arrived updates that make a step."""
    deadline_us: int | None = None
    """A step happens this long after the step before at the latest, with whatever has arrived, even nothing."""
    refill: Refill = "step"
    """`step`: a cohort is chosen right after each step. `arrival`: each place that falls free is filled at once."""
    late: Late = "drop"
    """What happens at a step to jobs still running: `drop` cancels them, `keep` lets them count for a later step."""

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.buffer < 1:
            raise ValueError(
                f"concurrency and buffer must be at least 1, found {self.concurrency}, {self.buffer}"
            )
        if self.buffer > self.concurrency:
            raise ValueError(
                f"buffer ({self.buffer}) is larger than concurrency ({self.concurrency}): it would never fill"
            )
        if self.deadline_us is not None and self.deadline_us <= 0:
            raise ValueError(f"deadline must be positive, found {self.deadline_us} us")
        if self.refill == "arrival" and self.late == "drop":
            raise ValueError('refill = "arrival" keeps clients working across steps, so late must be "keep"')

    @property
    def cancels(self) -> bool:
        """Whether a step ends all running jobs, so that the fate of a cohort is known when it is chosen."""
        return self.late == "drop"


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

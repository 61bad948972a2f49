"""The plain data of a run: what is planned, what is in flight, and where the run stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.job import Job, Report
from fedsim.pacing import Pacing
from fedsim.selection import Selector
from fedsim.trainer import Pending, StepColumns
from fedsim.world import Work

Ints = NDArray[np.int64]


class Kind(IntEnum):
    """Kinds of event, in the order in which they happen at equal times."""

    ARRIVE = 0
    LOST = 1
    DEADLINE = 2
    WAKE = 3


@dataclass(frozen=True, slots=True)
class Flight:
    """A job in flight and what the world will do to it."""

    job: Job
    dispatch_us: int
    download_us: int
    compute_us: int
    end_us: int
    ok: bool
    phase: int
    downloaded_bytes: int
    uploaded_bytes: int


class Records(Protocol):
    """Where the timeline writes what happened; see `fedsim.records` for the columns."""

    def job(self, flight: Flight, status: str, step: int, report: Report | None) -> None:
        """Record the end of a job."""

    def step(self, columns: Callable[[], StepColumns]) -> None:
        """Record a step; the columns may still be under way."""

    def evaluation(self, step: int, time_us: int, split: str, result: Pending) -> None:
        """Record an evaluation; the result may still be under way."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A run ends at whichever comes first."""

    steps: int | None = None
    time_us: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides the course of events besides the world."""

    pacing: Pacing
    selector: Selector
    work: Work
    """Arrays of length K: what one job of each client moves and computes."""
    n_samples: Ints
    stop: Stop
    seed: int
    evaluate_every: int = 10
    """Steps between evaluations; the initial and the final model are always evaluated. 0: only these two."""
    evaluate_split: str = "test"
    evaluate_personal: bool = False
    """Whether to evaluate each client with the model that it would use itself as well."""


@dataclass(slots=True)
class Course:
    """Where a run stands: the timeline's whole state, as plain data."""

    n_clients: int
    now_us: int = 0
    step: int = 0
    next_job: int = 0
    draws: int = 0
    heap: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(time, kind, client, job), for deadlines the step in place of the job; void entries are skipped."""
    running: dict[int, Flight] = field(default_factory=dict)
    buffer: list[Flight] = field(default_factory=list)
    busy: NDArray[np.bool_] = field(init=False)
    dispatched: Ints = field(init=False)
    received: Ints = field(init=False)
    deadline_step: int = -1
    wake_us: int = -1
    evaluated: int = -1
    lost: int = 0
    """Since the last step, as `late` and `waits`."""
    late: int = 0
    waits: int = 0
    lost_total: int = 0

    def __post_init__(self) -> None:
        self.busy = np.zeros(self.n_clients, dtype=bool)
        self.dispatched = np.zeros(self.n_clients, dtype=np.int64)
        self.received = np.zeros(self.n_clients, dtype=np.int64)

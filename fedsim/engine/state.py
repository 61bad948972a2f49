"""The plain data of a run: what is planned, what is in flight, and where the run stands."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedsim.engine.audit import Audit
from fedsim.engine.client_records import ClientRecords
from fedsim.engine.costs import Costs
from fedsim.engine.job_table import JobTable
from fedsim.engine.pacing import Pacing
from fedsim.engine.selector import Facts, Selector
from fedsim.engine.selector import State as SelectorState
from fedsim.training.attack import Droppers

if TYPE_CHECKING:
    from fedsim.engine.trainer import Pending, Stepped
    from fedsim.training.evaluation import Evaluation

Ints = NDArray[np.int64]


class Kind(IntEnum):
    """Kinds of event, in the order in which they happen at equal times."""

    ARRIVE = 0
    LOST = 1
    DEADLINE = 2
    WAKE = 3


class Records(Protocol):
    """Where the event loop writes what happened; see `fedsim.records.schemas` for the columns.

    Jobs that ended are in the job table of the run state, in the order in which they ended.
    """

    def step(self, result: Pending[Stepped], rows: Ints) -> None:
        """Record a step, which may still be under way; `rows` of the job table are the jobs whose reports it brings."""

    def crowded(self) -> None:
        """Make room: many jobs have ended since the last step."""

    def evaluation(self, step: int, time_us: int, split: str, result: Pending[Evaluation]) -> None:
        """Record an evaluation; the result may still be under way."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A run ends at whichever comes first; `fedsim.config.run.StopSection` says what each means."""

    steps: int | None = None
    time_us: int | None = None
    moved_bytes: int | None = None
    wall_s: float | None = None
    metric: str | None = None
    """What is watched: a metric of `analysis/metrics`, by name."""
    target: float | None = None
    """The run ends when the metric reaches this, from below if `rising`."""
    rising: bool = True
    patience: int | None = None
    """Evaluations in a row without an improvement of the metric by more than `least`."""
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class Evaluate:
    """When and what is evaluated; the initial and the final model always are."""

    every_steps: int = 10
    """0: never because of steps."""
    every_us: int = 0
    """Virtual time; 0: never because of time."""
    split: str = "test"
    personal: bool = False
    """Whether to evaluate each client with the model that it would use itself as well."""
    clients: Ints | None = None
    """Whom to evaluate; None for all. The final model is evaluated on all."""


@dataclass(frozen=True, slots=True)
class Dropout:
    """What the server does about lost jobs."""

    notice_us: int = 0
    """How long after it is lost the server learns of a loss."""
    retries: int = 0
    """How often the client is given the work once more, if it is online when the loss is noticed."""
    replace: bool = False
    """Whether another client is drawn in the middle of a round for one that is lost."""
    partial: bool = False
    """Whether a client that would miss the deadline does as many epochs less as lets it arrive in time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides what happens, besides the world."""

    pacing: Pacing
    selector: Selector
    costs: Costs
    facts: Facts
    stop: Stop
    seed: int
    evaluate: Evaluate = Evaluate()
    dropout: Dropout = Dropout()
    droppers: Droppers | None = None
    """Clients whose updates never arrive."""
    audit: Audit | None = None


@dataclass(slots=True)
class RunState:
    """Where a run stands: the event loop's whole state, as plain data."""

    n_clients: int
    begun: bool = False
    """Whether the first work was handed out; a run state that goes on after a checkpoint has begun."""
    now_us: int = 0
    step: int = 0
    step_us: int = 0
    next_job: int = 0
    draws: int = 0
    heap: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(time, kind, client, row of the job table), for deadlines their number in place of the row; void deadlines and
    wakings are skipped."""
    job_table: JobTable = field(default_factory=JobTable)
    in_flight: int = 0
    """Running jobs."""
    buffer: list[int] = field(default_factory=list)
    """Rows of jobs that arrived and wait for their step."""
    overdue: list[int] = field(default_factory=list)
    """Rows of jobs that arrived too late for their step, and wait for the next one to refresh the history."""
    overdue_running: int = 0
    """How many running jobs are too late for their step already."""
    client_records: ClientRecords = field(init=False)
    selector_state: SelectorState = field(default_factory=dict)
    deadlines: int = 0
    """Deadlines set so far; the last of them counts while `armed`."""
    armed: bool = False
    handed: bool = False
    """Whether work was handed out since the last step."""
    deadline_us: int = -1
    wake_us: int = -1
    evaluated: int = -1
    evaluate_us: int = 0
    """When time next asks for an evaluation."""
    lost: int = 0
    """Since the last step, as `late` and `waits`."""
    late: int = 0
    waits: int = 0
    lost_total: int = 0
    lost_now: list[int] = field(default_factory=list)
    """Clients of whose loss the server learned at the instant `lost_us`, if that is now."""
    lost_us: int = -1
    moved_bytes: int = 0
    best: float = float("nan")
    """The best value of the watched metric, and evaluations since then."""
    unimproved: int = 0
    reached: bool = False

    def __post_init__(self) -> None:
        self.client_records = ClientRecords.of(self.n_clients)

    def state(self) -> dict[str, Any]:
        """Return everything as plain values and arrays, for a checkpoint."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {
            "heap": np.array(self.heap, dtype=np.int64).reshape(-1, 4),
            "job_table": self.job_table.state(),
            "client_records": self.client_records.columns(),
        }

    @staticmethod
    def restored(state: Mapping[str, Any]) -> RunState:
        """Return the run state whose state this is. Raises KeyError or ValueError for what is none."""
        run_state = RunState(**{f.name: state[f.name] for f in fields(RunState) if f.init})
        run_state.heap = [tuple(event) for event in state["heap"].tolist()]
        run_state.job_table = JobTable.restored(state["job_table"])
        columns = state["client_records"].items()
        run_state.client_records = ClientRecords(**{name: np.array(column) for name, column in columns})
        return run_state

    def arm(self, deadline_us: int) -> None:
        """Set the deadline, so long from now; one that was set before no longer counts."""
        self.armed, self.deadlines = True, self.deadlines + 1
        self.deadline_us = self.now_us + deadline_us
        heapq.heappush(self.heap, (self.deadline_us, Kind.DEADLINE, -1, self.deadlines))

    def holds(self, event: tuple[int, int, int, int]) -> bool:
        """Whether an event of the heap still counts: deadlines and wakings may be void."""
        time_us, kind, _, number = event
        if kind == Kind.DEADLINE:
            return self.armed and number == self.deadlines
        return kind != Kind.WAKE or time_us == self.wake_us

    @property
    def working(self) -> int:
        """Number of running jobs that are not too late for their step already."""
        return self.in_flight - self.overdue_running

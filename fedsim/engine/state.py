"""The plan of a run and its run state, as plain data."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fedsim.common.arrays import Ints
from fedsim.engine.audit import Audit
from fedsim.engine.client_records import ClientRecords
from fedsim.engine.costs import Costs
from fedsim.engine.job_table import JobTable
from fedsim.engine.pacing import Pacing
from fedsim.engine.remembered import Memory, Remembered
from fedsim.engine.selector import Facts, Selector
from fedsim.engine.selector import State as SelectorState
from fedsim.server.rule import StartFrom
from fedsim.training.attack import Droppers

if TYPE_CHECKING:
    from fedsim.engine.trainer import Pending, Stepped
    from fedsim.training.evaluation import Evaluation


class Kind(IntEnum):
    """Kinds of event, in the order in which they happen at equal times."""

    ARRIVE = 0
    LOST = 1
    DEADLINE = 2
    WAKE = 3


class Records(Protocol):
    """The event loop writes steps and evaluations here; see `fedsim.records.schemas` for the columns.

    Ended jobs are in the job table of the run state, in order of their end.
    """

    def step(self, result: Pending[Stepped], rows: Ints) -> None:
        """Record a step whose result may be pending; `rows` of the job table are the jobs that it reports on."""

    def crowded(self) -> None:
        """Write ended jobs: many have ended since the last step."""

    def evaluation(self, step: int, time_us: int, split: str, result: Pending[Evaluation]) -> None:
        """Record an evaluation whose result may be pending."""


_ROUNDING = 1e-9
"""The share of a target by which a value of a metric may miss it: 29 of 100, times 100, is less than 29."""


def at_or_beyond(value: float, target: float, *, rising: bool) -> bool:
    """Whether a value of a metric is at its target or beyond it, from below if `rising`, but for rounding."""
    short = target - value if rising else value - target
    return short <= _ROUNDING * abs(target)


LOSS = "loss"
"""The metric of `Stop` that is the mean loss over samples."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The conditions that end a run; the first that holds does. `fedsim.config.run.StopSection` defines each."""

    steps: int | None = None
    time_us: int | None = None
    moved_bytes: int | None = None
    wall_s: float | None = None
    metric: str | None = None
    """Name of the watched metric, in `analysis/metrics`, or `LOSS`."""
    split: str | None = None
    """The split that the metric is measured on; None: that of `Evaluate`."""
    target: float | None = None
    """The run ends when the metric reaches this value, from below if `rising`."""
    rising: bool = True
    patience: int | None = None
    """The run ends after this many evaluations in a row without an improvement by more than `least`."""
    least: float = 0.0

    def improves(self, value: float, best: float) -> bool:
        """Whether a value of the metric is better than the best one before, NaN without one, by more than `least`."""
        if math.isnan(best):
            return not math.isnan(value)
        return (value - best if self.rising else best - value) > self.least

    def reaches(self, value: float) -> bool:
        """Whether a value of the metric is at the target or beyond it, but for rounding; False without a target."""
        return self.target is not None and at_or_beyond(value, self.target, rising=self.rising)


@dataclass(frozen=True, slots=True)
class Evaluate:
    """When and on what the server evaluates; it always evaluates the initial and the final model."""

    every_steps: int = 10
    """Steps between evaluations; 0: none by steps."""
    every_us: int = 0
    """Virtual time between evaluations; 0: none by time."""
    split: str = "test"
    also: tuple[str, ...] = ()
    """Further splits to evaluate on at the same times."""
    personal: bool = False
    """Whether to evaluate each client with its personal model as well."""
    adapted: bool = False
    """Whether to evaluate unseen clients after they adapted the model as well."""
    clients: Ints | None = None
    """Clients to evaluate, None for all; the final model is always evaluated on all."""


@dataclass(frozen=True, slots=True)
class Dropout:
    """How the server reacts to lost jobs and missed deadlines."""

    notice_us: int = 0
    """Time from a loss until the server notices it."""
    retries: int = 0
    """How often the server dispatches the lost work again to the same client, if it is online at the notice."""
    replace: bool = False
    """Whether the server replaces a lost client by another one within the round."""
    partial: bool = False
    """Whether a client that would miss the deadline does fewer epochs, so that it arrives in time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything besides the world that determines a run."""

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
    memory: Memory = field(default_factory=Memory)
    start: StartFrom = "current"
    """The model that jobs start from; see `fedsim.server.rule.Algorithm.start`."""
    inclusion: bool = False
    """Whether the rule needs the probability with which each client was chosen."""
    selector_named: str = "a selector"
    """The selector in messages."""

    def most_stale(self, *, overdue: bool) -> float:
        """Return by how many steps an update of use may be stale; an overdue one refreshes the memory alone."""
        limit = math.inf if self.pacing.max_staleness is None else self.pacing.max_staleness
        return min(limit, self.memory.steps) if overdue else limit


@dataclass(slots=True)
class RunState:
    """The whole state of the event loop between events, as plain data. Its fields are keys of checkpoints."""

    n_clients: int
    begun: bool = False
    """Whether the first dispatch took place; always True in a checkpoint."""
    now_us: int = 0
    step: int = 0
    step_us: int = 0
    next_job: int = 0
    draws: int = 0
    heap: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Events (time, kind, client, row of the job table); deadlines hold their number in place of the row. The loop
    skips void deadlines and wake-ups."""
    job_table: JobTable = field(default_factory=JobTable)
    in_flight: int = 0
    """Running jobs."""
    buffer: list[int] = field(default_factory=list)
    """Rows of jobs that arrived and wait for a step."""
    overdue: list[int] = field(default_factory=list)
    """Rows of jobs that arrived too late for their step; the next step refreshes the history with them."""
    overdue_running: int = 0
    """Number of running jobs that are already too late for their step."""
    client_records: ClientRecords = field(init=False)
    remembered: Remembered = field(init=False)
    selector_state: SelectorState = field(default_factory=dict)
    deadlines: int = 0
    """Number of deadlines set so far; the last one is valid while `armed`."""
    armed: bool = False
    stepped: bool = False
    """Whether the run ended with a step of this instant, before free places were filled; a fork fills them."""
    handed: bool = False
    """Whether a job was dispatched since the last step."""
    deadline_us: int = -1
    wake_us: int = -1
    evaluated: int = -1
    evaluate_us: int = 0
    """Virtual time of the next evaluation by time."""
    lost: int = 0
    """Losses noticed since the last step; `late` and `waits` count since then too."""
    late: int = 0
    waits: int = 0
    lost_total: int = 0
    in_vain: int = 0
    """Losses noticed since an update last came."""
    lost_now: list[int] = field(default_factory=list)
    """Clients whose losses the server noticed at `lost_us`, if that is the current instant."""
    lost_us: int = -1
    moved_bytes: int = 0
    best: float = float("nan")
    """Best value of the watched metric so far."""
    unimproved: int = 0
    """Evaluations since that best value."""
    reached: bool = False

    def __post_init__(self) -> None:
        self.client_records = ClientRecords.of(self.n_clients)
        self.remembered = Remembered.of(self.n_clients)

    def state(self) -> dict[str, Any]:
        """Return all fields as plain values and arrays, for a checkpoint."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {
            "heap": np.array(self.heap, dtype=np.int64).reshape(-1, 4),
            "job_table": self.job_table.state(),
            "client_records": self.client_records.columns(),
            "remembered": {"step": self.remembered.step, "time_us": self.remembered.time_us},
        }

    @staticmethod
    def restored(state: Mapping[str, Any]) -> RunState:
        """Return the run state with this `state()`. Raises KeyError or ValueError if it is malformed."""
        run_state = RunState(**{f.name: state[f.name] for f in fields(RunState) if f.init})
        run_state.heap = [tuple(event) for event in state["heap"].tolist()]
        run_state.job_table = JobTable.restored(state["job_table"])
        columns = state["client_records"].items()
        run_state.client_records = ClientRecords(**{name: np.array(column) for name, column in columns})
        run_state.remembered = Remembered(**{name: np.array(c) for name, c in state["remembered"].items()})
        return run_state

    def arm(self, deadline_us: int) -> None:
        """Set the deadline `deadline_us` from now; an earlier one becomes void."""
        self.armed, self.deadlines = True, self.deadlines + 1
        self.deadline_us = self.now_us + deadline_us
        heapq.heappush(self.heap, (self.deadline_us, Kind.DEADLINE, -1, self.deadlines))

    def wake(self, time_us: int) -> None:
        """Set the event that tries to fill free places; an earlier one becomes void."""
        self.wake_us = time_us
        heapq.heappush(self.heap, (time_us, Kind.WAKE, -1, -1))

    def holds(self, event: tuple[int, int, int, int]) -> bool:
        """Whether an event of the heap is valid: deadlines and wake-ups may be void."""
        time_us, kind, _, number = event
        if kind == Kind.DEADLINE:
            return self.armed and number == self.deadlines
        return kind != Kind.WAKE or time_us == self.wake_us

    @property
    def working(self) -> int:
        """Number of running jobs that are not yet too late for their step."""
        return self.in_flight - self.overdue_running

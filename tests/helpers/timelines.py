"""Worlds, plans and books for tests of the event loop: what it did, entry by entry, and what must hold of any run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedsim.common.units import US
from fedsim.engine.costs import Costs
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.job_table import JobTable
from fedsim.engine.pacing import Pacing
from fedsim.engine.record_words import STATUSES
from fedsim.engine.remembered import Memory
from fedsim.engine.selector import Clients, Facts, Selector, View, stateless
from fedsim.engine.state import Evaluate, Plan, RunState, Stop
from fedsim.engine.trainer import Pending, StepColumns, Stepped
from fedsim.execution.null_trainer import NullTrainer
from fedsim.server.step_input import StepInput
from fedsim.training.evaluation import Evaluation
from fedsim.training.job import Cohort, Job
from fedsim.worlds.trace import Trace
from fedsim.worlds.world import Leave, Work, World

Sessions = Sequence[tuple[float, float]]


def at_random(view: View, k: int, rng: np.random.Generator) -> Clients:
    """Choose uniformly, in an order that is random as well."""
    return rng.choice(view.candidates, k, replace=False)


def trace_of(
    seconds: Sequence[float],
    horizon_s: float = 1e6,
    online: Mapping[int, Sessions] | None = None,
    faults: Mapping[int, Sessions] | None = None,
    after_end: Any = "stop",
) -> Trace:
    """Clients that compute one unit of work in `seconds`, always online unless `online` says when.

    Each needs a second for a download and a second for an upload of 100 bytes.
    """
    rows: list[tuple[int, float, float, str, float]] = []
    for client, pace in enumerate(seconds):
        rows += [(client, 0, horizon_s, "compute", pace)]
        rows += [(client, 0, horizon_s, kind, 100.0) for kind in ("downlink", "uplink")]
        there = [(0, horizon_s)] if online is None else online.get(client, [])
        rows += [(client, a, b, "online", 1.0) for a, b in there]
        rows += [(client, a, b, "fault", 1.0) for a, b in (faults or {}).get(client, [])]
    client, start, end, kind, value = zip(*rows, strict=True)
    return Trace.of(
        client,
        _us(start),
        _us(end),
        kind,
        value,
        clients=len(seconds),
        horizon_us=round(horizon_s * US),
        after_end=after_end,
    )


def _us(seconds: ArrayLike) -> Any:
    return np.round(np.asarray(seconds, dtype=np.float64) * US).astype(np.int64)


def costs_of(n: int, epochs: int = 3, **changes: Any) -> Costs:
    """One unit of work for each of `n` clients, in six steps, and 100 bytes each way."""
    each = np.full(n, 100, dtype=np.int64)
    return Costs(Work(each, np.ones(n), each), steps=np.full(n, 2 * epochs), epochs=epochs, seed=0, **changes)


def plan_of(pacing: Pacing, n: int, stop: Stop, select: Any = at_random, **changes: Any) -> Plan:
    """A plan for `n` clients that are all alike but for the world."""
    selector = select if isinstance(select, Selector) else stateless(select)
    facts = Facts(np.full(n, 5), np.full((n, 1), 5))
    plan = Plan(
        pacing,
        selector,
        costs_of(n),
        facts,
        stop,
        seed=0,
        evaluate=Evaluate(every_steps=0),
        memory=Memory(math.inf),
    )
    return replace(plan, **changes)


@dataclass(frozen=True)
class Flight:
    """A job and what the world did to it."""

    job: Job
    attempt: int
    dispatch_us: int
    download_us: int
    compute_us: int
    end_us: int
    ok: bool
    phase: int
    downloaded_bytes: int
    uploaded_bytes: int


@dataclass(frozen=True)
class Entry:
    """One row of the table of jobs."""

    flight: Flight
    status: str
    step: int

    @property
    def key(self) -> tuple[Any, ...]:
        """What happened to whom, without the number of the job."""
        f = self.flight
        return f.job.client, f.job.version, f.dispatch_us, f.end_us, self.status, self.step


def entries(job_table: JobTable) -> list[Entry]:
    """Take the jobs that ended from a job table."""
    found = []
    for row in job_table.take():
        job = Job(*(row[name].item() for name in ("id", "client", "nth", "version", "share")))
        rest = {f.name: row[f.name].item() for f in fields(Flight) if f.name != "job"}
        flight = Flight(job, **rest | {"ok": bool(row["ok"])})
        found.append(Entry(flight, STATUSES[row["status"]], int(row["step"])))
    return found


@dataclass
class Book:
    """What an event loop records."""

    run_state: RunState
    jobs: list[Entry] = field(default_factory=list)
    steps: list[StepColumns] = field(default_factory=list)

    def step(self, result: Pending[Stepped], rows: Any) -> None:
        self.run_state.job_table.hear(rows, result().reports)
        self.steps.append(result().columns)
        self.crowded()

    def crowded(self) -> None:
        self.jobs += entries(self.run_state.job_table)

    def evaluation(self, step: int, time_us: int, split: str, result: Pending[Evaluation]) -> None:
        pass

    def used(self) -> list[Entry]:
        return [e for e in self.jobs if e.status == "aggregated"]

    def rows(self) -> list[tuple[Any, ...]]:
        """The steps, by what the event loop alone decides."""
        names = ("time_us", "cause", "updates", "lost", "late", "waits", "in_flight", "status")
        return [tuple(row[name] for name in names) for row in self.steps]


class StrictTrainer(NullTrainer):
    """Checks that the event loop keeps its side of the contract of a Trainer."""

    def __init__(self) -> None:
        self.version = 0
        self.open: dict[int, Job] = {}
        self.latest: dict[int, int] = {}

    def submit(self, cohort: Cohort) -> None:
        assert len(cohort)
        for job in map(cohort.job, range(len(cohort))):
            assert job.version == self.version, "a job starts from the model of its dispatch"
            assert job.id > self.latest.get(job.client, -1)
            self.open[job.id], self.latest[job.client] = job, job.id

    def forget(self, cohort: Cohort) -> None:
        for job in map(cohort.job, range(len(cohort))):
            if self.open.pop(job.id, None) is not None:
                assert self.latest[job.client] == job.id, "nobody works on from what is to be forgotten"

    def step(self, arrivals: StepInput, cohort: Cohort) -> Pending[Stepped]:
        assert arrivals.step == self.version
        assert arrivals.clients.tolist() == cohort.clients.tolist()
        for job in map(cohort.job, range(len(cohort))):
            assert self.open.pop(job.id) == job, "only what was submitted can be collected, once"
        self.version += 1
        return super().step(arrivals, cohort)


def run(trace: Trace, plan: Plan, leave: Leave = "abort") -> tuple[Book, str, EventLoop]:
    """Run a plan to its end; return the book, what ended it, and the event loop."""
    run_state, world = RunState(trace.clients), World(trace, leave=leave)
    book = Book(run_state)
    event_loop = EventLoop(world, plan, StrictTrainer(), book, run_state)
    ended_by = event_loop.run()
    event_loop.abandon()
    book.crowded()
    return book, ended_by, event_loop


def assert_sound(book: Book, event_loop: EventLoop) -> None:
    """Assert what holds of every run: see `docs/event_loop.md`."""
    run_state, plan = event_loop.run_state, event_loop.plan
    times = np.array([int(row["time_us"]) for row in book.steps], dtype=np.int64)
    assert (np.diff(times) >= 0).all(), "time never goes back"
    assert [row["step"] for row in book.steps] == list(range(run_state.step))
    assert sorted(e.flight.job.id for e in book.jobs) == list(range(run_state.next_job)), "each job once"
    assert run_state.moved_bytes == sum(
        e.flight.downloaded_bytes + e.flight.uploaded_bytes for e in book.jobs
    )
    for entry in book.jobs:
        _assert_job(entry, times, plan)
        assert event_loop.world.online(entry.flight.dispatch_us)[entry.flight.job.client], "it was online"
    _assert_one_job_at_a_time(book)
    if isinstance(trainer := event_loop.trainer, StrictTrainer):
        under_way = {e.flight.job.id for e in book.jobs if e.status == "unfinished"}
        assert set(trainer.open) <= under_way, "the trainer keeps no job that was dropped"
    assert _most_at_once(book, plan, times) <= plan.pacing.concurrency
    _assert_steps(book, plan)


def _assert_job(entry: Entry, times: Any, plan: Plan) -> None:
    f, version = entry.flight, entry.flight.job.version
    assert np.sum(times < f.dispatch_us) <= version <= np.sum(times <= f.dispatch_us)
    ends = [t for t in (f.download_us, f.compute_us) if t >= 0]
    assert sorted([f.dispatch_us, *ends, f.end_us]) == [f.dispatch_us, *ends, f.end_us]
    assert 0 < f.job.share <= 1
    assert f.attempt <= plan.dropout.retries
    assert 0 <= f.downloaded_bytes <= 100
    assert 0 <= f.uploaded_bytes <= 100
    assert (entry.step >= 0) == (entry.status == "aggregated")
    if entry.status in ("aggregated", "remembered", "stale", "void"):
        assert f.ok
        assert f.uploaded_bytes == 100
    if entry.status == "aggregated":
        assert f.end_us <= times[entry.step]
        assert entry.step == 0 or f.end_us >= times[entry.step - 1]
        limit = plan.pacing.max_staleness
        assert 0 <= entry.step - version <= (limit if limit is not None else entry.step)
        assert plan.pacing.late == "keep" or entry.step == version, "no update outlives its round"


def _assert_one_job_at_a_time(book: Book) -> None:
    last: dict[int, int] = {}
    for entry in sorted(book.jobs, key=lambda e: e.flight.job.id):
        f = entry.flight
        assert last.get(f.job.client, 0) <= f.dispatch_us, "a client has one job at a time"
        last[f.job.client] = f.end_us


def _most_at_once(book: Book, plan: Plan, times: Any) -> int:
    events: Counter[tuple[int, int]] = Counter()
    for entry in book.jobs:
        f, end_us = entry.flight, entry.flight.end_us
        if plan.pacing.late == "history" and f.job.version < len(times):
            end_us = min(end_us, int(times[f.job.version]))
        if end_us > f.dispatch_us:
            events[end_us, 0] -= 1
            events[f.dispatch_us, 1] += 1
    return int(np.cumsum([events[key] for key in sorted(events)]).max(initial=0))


def _assert_steps(book: Book, plan: Plan) -> None:
    for row in book.steps:
        used = [e for e in book.used() if e.step == row["step"]]
        assert row["updates"] == len(used) <= plan.pacing.most_updates
        if row["cause"] == "full":
            assert row["updates"] == plan.pacing.buffer
        if used:
            assert row["mean_staleness"] == np.mean([e.step - e.flight.job.version for e in used])
        elif row["status"] != "void":
            assert row["status"] == "empty"

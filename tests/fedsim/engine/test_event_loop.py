"""Schedules by hand: what happens when, in a world of three clients, for each pacing.

In the plain world a job of client 0, 1, 2 takes 3, 5 and 9 seconds: one second down, one up, the rest computing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsim.common.errors import RunError
from fedsim.common.rng import Draws
from fedsim.common.units import US
from fedsim.engine import job_table as job_table
from fedsim.engine.costs import Chance, Completeness, Costs, Jitter
from fedsim.engine.event_loop import EventLoop
from fedsim.engine.pacing import Late, Pacing, deadline, fedasync, fedbuff, overselect, periodic, sync
from fedsim.engine.record_words import STATUSES
from fedsim.engine.remembered import Memory
from fedsim.engine.selector import Clients, Facts, View, stateless
from fedsim.engine.state import Dropout, Evaluate, Plan, RunState, Stop
from fedsim.engine.trainer import Pending, StepColumns, Stepped
from fedsim.execution.null_trainer import NullTrainer
from fedsim.plugins import build
from fedsim.training.evaluation import Evaluation
from fedsim.training.job import Cohort
from fedsim.worlds.trace import Trace
from fedsim.worlds.world import Work, World
from timelines import Flight, StrictTrainer, entries

SECONDS = (1, 3, 7)
TWO_STEPS = Stop(steps=2)


@dataclass
class Log:
    """Records in words: jobs as (end, status, client, version), steps as (time, cause, updates)."""

    run_state: RunState = field(default_factory=lambda: RunState(3))
    jobs: list[tuple[float, str, int, int]] = field(default_factory=list)
    flights: list[Flight] = field(default_factory=list)
    steps: list[tuple[float, str, int]] = field(default_factory=list)
    columns: list[StepColumns] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    evaluated_s: list[float] = field(default_factory=list)

    attempts: list[int] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    used_by: list[int] = field(default_factory=list)

    def crowded(self) -> None:
        for entry in entries(self.run_state.job_table):
            flight = entry.flight
            self.flights.append(flight)
            self.attempts.append(flight.attempt)
            self.shares.append(flight.job.share)
            self.used_by.append(entry.step)
            self.jobs.append((flight.end_us / US, entry.status, flight.job.client, flight.job.version))

    def step(self, result: Pending[Stepped], rows: Any) -> None:
        row = result().columns
        self.crowded()
        self.columns.append(row)
        self.steps.append((float(row["time_us"]) / US, str(row["cause"]), int(row["updates"])))

    def evaluation(self, step: int, time_us: int, split: str, result: Pending[Evaluation]) -> None:
        self.evaluations.append(step)
        self.evaluated_s.append(time_us / US)


def world(
    online: dict[int, list[tuple[float, float]]] | None = None,
    faults: list[tuple[int, float, float]] = (),  # type: ignore[assignment]
    horizon_s: float = 1000,
    after_end: str = "stop",
) -> World:
    rows: list[tuple[int, float, float, str, float]] = []
    for client in range(3):
        rows += [(client, a, b, "online", 1.0) for a, b in (online or {}).get(client, [(0, horizon_s)])]
        rows += [(client, 0, horizon_s, "compute", float(SECONDS[client]))]
        rows += [(client, 0, horizon_s, kind, 100.0) for kind in ("downlink", "uplink")]
    rows += [(client, a, b, "fault", 1.0) for client, a, b in faults]
    client, start, end, kind, value = zip(*rows, strict=True)
    trace = Trace.of(
        client,
        (np.array(start) * US).astype(np.int64),
        (np.array(end) * US).astype(np.int64),
        kind,
        value,
        clients=3,
        horizon_us=round(horizon_s * US),
        after_end=after_end,  # type: ignore[arg-type]
    )
    return World(trace)


def lowest_first(view: View, k: int, rng: np.random.Generator) -> Clients:
    return view.candidates[:k]


def plan(pacing: Pacing, stop: Stop, select: Callable[[View, int, np.random.Generator], Clients]) -> Plan:
    each = np.full(3, 100, dtype=np.int64)
    return Plan(
        pacing,
        stateless(select),
        Costs(Work(each, np.ones(3), each), steps=np.full(3, 6), epochs=3, seed=0),
        Facts(np.full(3, 5), np.full((3, 1), 5)),
        stop,
        seed=0,
        evaluate=Evaluate(every_steps=2),
        memory=Memory(math.inf),
    )


def run(
    pacing: Pacing,
    place: World,
    stop: Stop = TWO_STEPS,
    select: Callable[[View, int, np.random.Generator], Clients] = lowest_first,
    **changes: Any,
) -> tuple[Log, str, EventLoop]:
    log = Log()
    settled = replace(plan(pacing, stop, select), **changes)
    event_loop = EventLoop(place, settled, StrictTrainer(), log, log.run_state)
    ended_by = event_loop.run()
    event_loop.abandon()
    log.crowded()
    return log, ended_by, event_loop


def test_sync_waits_for_the_slowest() -> None:
    log, ended_by, _ = run(sync(3), world())
    assert log.steps == [(9, "full", 3), (18, "full", 3)]
    assert log.jobs == [
        (3, "aggregated", 0, 0),
        (5, "aggregated", 1, 0),
        (9, "aggregated", 2, 0),
        (12, "aggregated", 0, 1),
        (14, "aggregated", 1, 1),
        (18, "aggregated", 2, 1),
    ]
    assert ended_by == "steps"
    assert log.evaluations == [0, 2]


def test_overselect_takes_the_first_and_cancels_the_rest() -> None:
    log, _, event_loop = run(overselect(2, 1), world())
    assert log.steps == [(5, "full", 2), (10, "full", 2)]
    assert log.jobs == [
        (3, "aggregated", 0, 0),
        (5, "aggregated", 1, 0),
        (5, "late", 2, 0),
        (8, "aggregated", 0, 1),
        (10, "aggregated", 1, 1),
        (10, "late", 2, 1),
    ]
    assert [row["late"] for row in log.columns] == [1, 1]
    assert not event_loop.run_state.client_records.busy.any()


def test_overselect_without_extra_is_sync() -> None:
    assert run(overselect(3, 0), world())[0].jobs == run(sync(3), world())[0].jobs


def test_an_arrival_at_the_instant_of_the_deadline_counts() -> None:
    log, _, _ = run(deadline(3, 5 * US), world())
    assert log.steps == [(5, "deadline", 2), (10, "deadline", 2)]
    assert log.jobs[:3] == [(3, "aggregated", 0, 0), (5, "aggregated", 1, 0), (5, "late", 2, 0)]


def test_a_deadline_before_the_first_arrival_gives_an_empty_step() -> None:
    log, _, _ = run(deadline(3, 2 * US), world())
    assert log.steps == [(2, "deadline", 0), (4, "deadline", 0)]
    assert [row["status"] for row in log.columns] == ["empty", "empty"]
    assert {status for _, status, _, _ in log.jobs} == {"late"}


def test_a_deadline_that_another_has_replaced_makes_no_step() -> None:
    """A run that is forked at 6 s with a deadline 20 s later: that of 8 s is void."""
    log, before = Log(), plan(deadline(3, 8 * US), Stop(time_us=6 * US), lowest_first)
    assert EventLoop(world(), before, StrictTrainer(), log, log.run_state).run() == "time"
    log.run_state.arm(20 * US)
    after = replace(before, pacing=deadline(3, 20 * US), stop=Stop(steps=1))
    EventLoop(world(), after, NullTrainer(), log, log.run_state).run()
    assert log.steps == [(9, "full", 3)]


def test_a_full_buffer_makes_the_deadline_void() -> None:
    log, _, _ = run(deadline(3, 10 * US), world())
    assert log.steps == [(9, "full", 3), (18, "full", 3)]


def test_fedbuff_refills_each_place_at_once_and_keeps_versions() -> None:
    log, _, _ = run(fedbuff(2, 2), world(), Stop(steps=3))
    # 0 and 1 start at 0. 0 is idle and chosen again at 3, 6, 9; 1 at 5 and 10. The buffer is full at 5, 9 and 12.
    assert log.steps == [(5, "full", 2), (9, "full", 2), (12, "full", 2)]
    assert log.jobs[:6] == [
        (3, "aggregated", 0, 0),
        (5, "aggregated", 1, 0),
        (6, "aggregated", 0, 0),
        (9, "aggregated", 0, 1),
        (10, "aggregated", 1, 1),
        (12, "aggregated", 0, 2),
    ]
    assert [row["mean_staleness"] for row in log.columns] == [0, 0.5, 0.5]
    assert log.jobs[6:] == [(12, "unfinished", 1, 2)]


def test_places_that_wait_for_a_step_are_filled_at_it_though_others_still_work() -> None:
    log, _, _ = run(replace(fedbuff(3, 2), refill="step"), world(), Stop(steps=3))
    # 0 and 1 start again at 5, beside 2, which arrives at 9; so do 0 and 2 at 9.
    assert log.steps == [(5, "full", 2), (9, "full", 2), (12, "full", 2)]
    assert log.jobs[2:4] == [(8, "aggregated", 0, 1), (9, "aggregated", 2, 0)]


def test_a_buffer_that_fills_at_the_instant_of_the_deadline_makes_one_step() -> None:
    log, _, _ = run(deadline(3, 9 * US), world())
    assert log.steps == [(9, "full", 3), (18, "full", 3)]


def test_fedbuff_with_buffer_and_concurrency_of_all_equally_fast_clients_is_sync() -> None:
    rows = [
        (client, kind, value)
        for client in range(3)
        for kind, value in (("online", 1.0), ("compute", 4.0), ("downlink", 100.0), ("uplink", 100.0))
    ]
    client, kind, value = zip(*rows, strict=True)
    end = [1000 * US] * len(rows)
    trace = Trace.of(
        client, [0] * len(rows), end, kind, value, clients=3, horizon_us=end[0], after_end="stop"
    )
    buffered, synchronous = run(fedbuff(3, 3), World(trace))[0], run(sync(3), World(trace))[0]
    assert buffered.steps == synchronous.steps
    assert [j for j in buffered.jobs if j[1] == "aggregated"] == synchronous.jobs


@pytest.mark.parametrize(("leaves_s", "phase"), [(0.5, 1), (4, 2), (8.5, 3)])
def test_a_client_that_leaves_in_any_phase_is_lost_then(leaves_s: float, phase: int) -> None:
    place = world(online={2: [(0, leaves_s)]})
    log = Log()
    EventLoop(place, plan(sync(3), Stop(steps=1), lowest_first), NullTrainer(), log, log.run_state).run()
    lost = next(f for f in log.flights if f.job.client == 2)
    assert (lost.end_us, lost.ok, lost.phase) == (leaves_s * US, False, phase)
    assert log.steps == [(max(5, leaves_s), "drained", 2)]


def test_a_cohort_that_is_lost_entirely_gives_an_empty_step() -> None:
    log, _, _ = run(sync(3), world(faults=[(c, 1, 2) for c in range(3)]))
    assert log.steps[0] == (1, "drained", 0)
    assert log.columns[0]["lost"] == 3
    assert log.columns[0]["status"] == "empty"


def test_equal_times_are_ordered_by_kind_then_client() -> None:
    """Client 1 arrives at 5 s, at the very instant at which client 2 fails: first the arrival, then the loss."""
    log, _, _ = run(sync(3), world(faults=[(2, 5, 6)]), Stop(steps=1))
    assert log.jobs == [(5, "lost", 2, 0), (3, "aggregated", 0, 0), (5, "aggregated", 1, 0)]
    assert log.steps == [(5, "drained", 2)]


def test_when_nobody_is_online_the_clock_jumps_and_the_wait_is_counted() -> None:
    place = world(online={0: [(20, 100)], 1: [(50, 100)], 2: []})
    log, _, _ = run(sync(2), place, Stop(steps=1))
    assert log.jobs == [(23, "aggregated", 0, 0)]
    assert log.columns[0]["waits"] == 1


def test_fedbuff_takes_a_client_as_soon_as_it_comes_online() -> None:
    place = world(online={0: [(0, 100)], 1: [(1.5, 100)], 2: []})
    log, _, _ = run(fedbuff(2, 2), place, Stop(steps=1))
    assert [j[:3] for j in log.jobs if j[1] == "aggregated"] == [(3, "aggregated", 0), (6, "aggregated", 0)]
    assert (6.5, "unfinished", 1, 0) not in log.jobs  # it is cut at the end of the run
    assert any(status == "unfinished" and client == 1 for _, status, client, _ in log.jobs)


def test_of_clients_lost_together_one_that_is_still_there_is_asked_again_a_second_later() -> None:
    """Client 0 fails and stays, client 1 leaves for good, both after a second; client 2 comes after 500 s."""
    place = world(online={1: [(0, 1)], 2: [(500, 1000)]}, faults=[(0, 1, 1.5)])
    log, _, _ = run(sync(2), place, Stop(steps=2))
    assert log.jobs[:3] == [(1, "lost", 0, 0), (1, "lost", 1, 0), (5, "aggregated", 0, 1)]


@pytest.mark.parametrize(
    ("pacing", "buffer"), [(fedbuff(3, 2), 2), (overselect(2, 1), 2), (sync(3), 3), (periodic(3, 4 * US), 3)]
)
def test_a_selector_sees_how_many_updates_make_a_step(pacing: Pacing, buffer: int) -> None:
    seen = []

    def look(view: View, k: int, rng: np.random.Generator) -> Clients:
        seen.append(view.buffer)
        return view.candidates[:k]

    run(pacing, world(), select=look)
    assert set(seen) == {buffer}


def test_the_first_choice_is_made_with_the_first_generator() -> None:
    drawn, plain = [], Draws(0, "select")

    def look(view: View, k: int, rng: np.random.Generator) -> Clients:
        drawn.append(rng.random())
        return view.candidates[:k]

    run(sync(3), world(), Stop(steps=3), select=look)
    assert drawn == [plain.at(number).random() for number in range(3)]


class Second:
    """Attackers that stand for themselves: no update of client 1 ever arrives."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, float]] = []

    def drop(self, cohort: Cohort) -> NDArray[np.bool_]:
        assert (cohort.shares == 1).all()
        seconds = cohort.dispatch_us / US
        columns = (cohort.clients, cohort.nths, cohort.versions, seconds)
        self.seen += zip(*(column.tolist() for column in columns), strict=True)
        return np.asarray(cohort.clients == 1)


@pytest.mark.parametrize("k", [1, 2])
def test_whoever_drops_updates_does_so_whether_jobs_start_alone_or_together(k: int) -> None:
    second = Second()
    log, _, _ = run(
        sync(k), world(), Stop(time_us=40 * US), lambda v, n, _: v.candidates[1:][:n], droppers=second
    )
    # Client 1 is not asked again at the instant at which it is lost, nor together with 2 before 2 arrives.
    alone, together = [(1, 0, 0, 0.0), (2, 0, 1, 5.0)], [(1, 0, 0, 0.0), (2, 0, 0, 0.0), (1, 1, 1, 9.0)]
    assert second.seen[: k + 1] == (alone if k == 1 else together)
    ends = {client: {status for _, status, who, _ in log.jobs if who == client} for client in range(3)}
    assert "lost" in ends[1]
    assert "aggregated" not in ends[1]
    assert k == 1 or "aggregated" in ends[2]


def test_a_selector_sees_when_the_last_step_was() -> None:
    seen = []

    def look(view: View, k: int, rng: np.random.Generator) -> Clients:
        seen.append((view.now_us, view.step, view.step_us))
        return view.candidates[:k]

    run(sync(3), world(), Stop(steps=3), select=look)
    assert seen == [(0, 0, 0), (9 * US, 1, 9 * US), (18 * US, 2, 18 * US)]


@pytest.mark.parametrize("pacing", [fedasync(1), sync(1), fedbuff(1, 1)], ids=["fedasync", "sync", "fedbuff"])
def test_each_choice_is_a_draw_of_its_own(pacing: Pacing) -> None:
    """One place at a time, thirty times: each of three clients is drawn, and seldom in turn."""
    log, _, event_loop = run(pacing, world(), Stop(steps=30), selector=build("selector", "uniform", {}))
    chosen = [client for *_, client, _ in sorted(log.jobs)]
    assert event_loop.run_state.draws >= 30
    assert min(chosen.count(client) for client in range(3)) >= 4
    assert len(set(pairwise(chosen))) >= 7


def test_an_empty_world_ends_the_run() -> None:
    log, ended_by, _ = run(sync(2), world(online={0: [], 1: [], 2: []}))
    assert ended_by == "world"
    assert log.steps == []


def test_a_selector_that_chooses_nobody_any_more_ends_the_run() -> None:
    def once(view: View, k: int, rng: np.random.Generator) -> Clients:
        return view.candidates[: k if view.step < 2 else 0]

    place = world(online={c: [(0, 30)] for c in range(3)}, horizon_s=40, after_end="repeat")
    for pacing, steps in ((sync(3), 2), (fedbuff(3, 2), 3), (fedbuff(3, 3), 2), (deadline(3, 20 * US), 2)):
        log, ended_by, event_loop = run(pacing, place, Stop(steps=100), once)
        assert ended_by == "world"
        assert len(log.steps) == steps
        last = max(log.steps[-1][0], *(end for end, *_ in log.jobs))
        assert 80 < event_loop.run_state.now_us / US - last <= 120
    _, ended_by, event_loop = run(sync(3), place, Stop(steps=100, time_us=400 * US), once)
    assert (ended_by, event_loop.run_state.now_us) == ("time", 400 * US)


def test_updates_that_wait_for_a_deadline_of_many_laps_are_not_in_vain() -> None:
    """Client 2 is never online, so there is always a place to fill, and each lap of 40 s tries to."""
    place = world(online={0: [(0, 30)], 1: [(0, 30)], 2: []}, horizon_s=40, after_end="repeat")
    replaced = Dropout(replace=True)
    log, ended_by, _ = run(periodic(3, 200 * US), place, Stop(steps=3), dropout=replaced)
    assert ended_by == "steps"
    assert log.steps == [(t, "deadline", 2) for t in (200, 400, 600)]


def test_two_laps_are_waited_from_the_last_arrival_on() -> None:
    """It is at 43 s; who is online changes at 0 and 30 s of each lap of 40 s, so after 123 s first at 150 s."""

    def late(view: View, k: int, rng: np.random.Generator) -> Clients:
        return view.candidates[: 1 if view.now_us >= 40 * US and not view.dispatched.any() else 0]

    place = world(online={c: [(0, 30)] for c in range(3)}, horizon_s=40, after_end="repeat")
    log, ended_by, event_loop = run(fedbuff(2, 2), place, Stop(steps=1), late)
    assert (ended_by, event_loop.run_state.now_us) == ("world", 150 * US)
    assert log.jobs == [(43, "unfinished", 0, 0)]


def test_a_world_in_which_every_job_is_lost_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of two seconds are shorter than the jobs, of five and more."""
    monkeypatch.setattr("fedsim.engine.event_loop._HOPELESS", 40)
    short = [(t, t + 2) for t in range(0, 40, 4)]
    place = world(online=dict.fromkeys(range(3), short), horizon_s=40, after_end="repeat")
    log, ended_by, _ = run(fedbuff(3, 2), place, Stop(steps=100))
    assert ended_by == "world"
    lost = [status for _, status, *_ in log.jobs if status == "lost"]
    assert 40 <= len(lost) <= 42
    assert run(fedbuff(3, 2), place, Stop(steps=100, time_us=400 * US))[1] == "time"
    one_works = world(online={0: [(0, 40)], 1: short, 2: short}, horizon_s=40, after_end="repeat")
    assert run(fedbuff(3, 2), one_works, Stop(steps=100))[1] == "steps"


def test_an_update_that_waits_does_not_keep_a_run_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update of client 0 came first, and those of the others, of whom one is always online, never do."""
    monkeypatch.setattr("fedsim.engine.event_loop._HOPELESS", 40)
    short = {c: [(t, t + 2) for t in range(2 * c - 2, 40, 4)] for c in (1, 2)}
    place = world(online={0: [(0, 40)], **short}, horizon_s=40, after_end="repeat")
    log, ended_by, event_loop = run(sync(2), place, Stop(steps=100), dropout=Dropout(replace=True))
    assert (ended_by, log.steps) == ("world", [])
    assert 40 <= event_loop.run_state.lost <= 42


def test_a_world_that_stops_ends_the_run() -> None:
    log, ended_by, event_loop = run(sync(3), world(horizon_s=20), Stop(steps=100))
    assert ended_by == "world"
    assert [t for t, _, _ in log.steps] == [9, 18, 20]
    assert event_loop.run_state.now_us == 20 * US


def test_a_time_limit_ends_the_run_at_that_time() -> None:
    log, ended_by, event_loop = run(sync(3), world(), Stop(time_us=10 * US))
    assert ended_by == "time"
    assert event_loop.run_state.now_us == 10 * US
    assert [j for j in log.jobs if j[1] == "unfinished"] == [(10, "unfinished", c, 1) for c in range(3)]


def test_a_run_that_ended_within_an_instant_goes_on_as_a_longer_one() -> None:
    """Clients 0 and 2 arrive at 9 s, at the fourth and the fifth step, while client 1 works on until 10 s."""
    pacing = replace(fedbuff(3, 1), refill="step")
    longer, _, _ = run(pacing, world(), Stop(steps=12))
    assert [t for t, _, _ in longer.steps[2:6]] == [6, 9, 9, 10]
    log, trainer = Log(), StrictTrainer()
    for steps in (5, 12):
        settled = plan(pacing, Stop(steps=steps), lowest_first)
        event_loop = EventLoop(world(), settled, trainer, log, log.run_state)
        event_loop.run()
    event_loop.abandon()
    log.crowded()
    assert (log.steps, log.jobs) == (longer.steps, longer.jobs)


def test_fedasync_steps_at_every_arrival() -> None:
    log, _, _ = run(fedasync(3), world(), Stop(steps=6))
    assert log.steps == [
        (3, "full", 1),
        (5, "full", 1),
        (6, "full", 1),
        (9, "full", 1),
        (9, "full", 1),
        (10, "full", 1),
    ]
    assert [row["mean_staleness"] for row in log.columns] == [0, 1, 1, 0, 4, 3]
    assert log.jobs[:6] == [
        (3, "aggregated", 0, 0),
        (5, "aggregated", 1, 0),
        (6, "aggregated", 0, 1),
        (9, "aggregated", 0, 3),
        (9, "aggregated", 2, 0),
        (10, "aggregated", 1, 2),
    ]


def test_periodic_steps_by_the_clock_and_keeps_who_is_late() -> None:
    log, _, _ = run(periodic(3, 4 * US), world(), Stop(steps=3))
    assert log.steps == [(4, "deadline", 1), (8, "deadline", 2), (12, "deadline", 2)]
    assert log.jobs[:5] == [
        (3, "aggregated", 0, 0),
        (5, "aggregated", 1, 0),
        (7, "aggregated", 0, 1),
        (9, "aggregated", 2, 0),
        (11, "aggregated", 0, 2),
    ]


def test_periodic_waits_for_its_time_even_if_nobody_works() -> None:
    log, _, _ = run(periodic(1, 4 * US), world(), Stop(steps=2))
    assert log.steps == [(4, "deadline", 1), (8, "deadline", 1)]


def test_who_is_late_may_refresh_the_history() -> None:
    log, _, _ = run(replace(overselect(1, 1), late="history"), world(), Stop(steps=3))
    assert log.steps == [(3, "full", 1), (6, "full", 1), (9, "full", 1)]
    assert [row["late"] for row in log.columns] == [1, 1, 1]
    assert log.jobs[:5] == [
        (3, "aggregated", 0, 0),
        (6, "aggregated", 0, 1),
        (5, "remembered", 1, 0),
        (9, "aggregated", 0, 2),
        (9, "unfinished", 2, 1),
    ]


def test_a_late_job_that_is_lost_is_not_tried_again() -> None:
    """Client 1 fails at 4 s, one step after its own; client 0, which works for its step, gets its second try."""
    late = replace(overselect(1, 1), late="history")
    for faults, attempts in (([(1, 4, 5)], {0}), ([(0, 1, 1.5)], {0, 1})):
        log, _, _ = run(late, world(faults=faults), Stop(steps=3), dropout=Dropout(retries=1))
        assert set(log.attempts) == attempts


def test_who_is_later_than_the_memory_refreshes_nothing() -> None:
    """The job of client 1, of 5 s, is one step late; that of client 2, which arrives with the third step, three."""
    late = replace(overselect(1, 2), late="history")
    for steps, statuses in (
        (3, ["remembered", "remembered"]),
        (2, ["remembered", "stale"]),
        (0, ["stale", "stale"]),
    ):
        log, _, _ = run(late, world(), Stop(steps=4), memory=Memory(steps))
        ended = {client: status for _, status, client, version in log.jobs if version == 0}
        assert [ended[1], ended[2]] == statuses


def test_who_is_later_than_the_limit_refreshes_nothing() -> None:
    """The client that takes 9 s is two steps late when it arrives."""
    late = replace(overselect(1, 1), late="history")
    ends = {}
    for limit in (None, 5, 0):
        log, _, _ = run(replace(late, max_staleness=limit), world(), Stop(steps=6))
        ends[limit] = {status for _, status, _, _ in log.jobs}
    assert ends[None] == ends[5]
    assert "remembered" in ends[None] - ends[0]
    assert "stale" in ends[0] - ends[None]


def test_who_is_late_has_no_place_in_the_cohort_and_cannot_be_drawn() -> None:
    seen: list[tuple[float, list[int]]] = []

    def watching(view: View, k: int, rng: np.random.Generator) -> Clients:
        seen.append((view.now_us / US, view.candidates.tolist()))
        return view.candidates[:k]

    run(replace(overselect(1, 1), late="history"), world(), Stop(steps=3), watching)
    assert seen == [(0, [0, 1, 2]), (3, [0, 2]), (6, [0, 1])]


def test_updates_that_are_too_old_are_left_out() -> None:
    log, _, _ = run(replace(fedbuff(3, 2), max_staleness=0), world(), Stop(steps=2))
    assert log.steps == [(5, "full", 2), (10, "full", 2)]
    assert log.jobs[:6] == [
        (3, "aggregated", 0, 0),
        (5, "aggregated", 1, 0),
        (6, "stale", 0, 0),
        (9, "stale", 2, 0),
        (9, "aggregated", 0, 1),
        (10, "aggregated", 1, 1),
    ]


def test_updates_as_old_as_the_limit_count() -> None:
    log, _, _ = run(replace(fedbuff(3, 2), max_staleness=1), world(), Stop(steps=3))
    assert log.steps == [(5, "full", 2), (9, "full", 2), (12, "full", 2)]
    assert log.jobs[:7] == [
        (3, "aggregated", 0, 0),
        (5, "aggregated", 1, 0),
        (6, "aggregated", 0, 0),
        (9, "aggregated", 0, 1),
        (9, "stale", 2, 0),  # two steps have been taken since it was handed out
        (10, "aggregated", 1, 1),
        (12, "aggregated", 0, 2),
    ]


def test_a_round_with_too_few_updates_is_void() -> None:
    log, _, _ = run(replace(deadline(3, 5 * US), minimum=3), world(), Stop(steps=1))
    assert log.steps == [(5, "deadline", 0)]
    assert log.columns[0]["status"] == "void"
    assert log.jobs == [(3, "void", 0, 0), (5, "void", 1, 0), (5, "late", 2, 0)]


def test_what_a_step_drops_is_forgotten_job_by_job_the_last_one_first() -> None:
    """What a client keeps from job to job goes back to where it was before the first of them."""
    forgotten: list[int] = []

    class Forgetting(NullTrainer):
        def forget(self, cohort: Cohort) -> None:
            forgotten.extend(cohort.ids.tolist())

    pacing = replace(deadline(3, 5 * US), minimum=3)
    EventLoop(world(), plan(pacing, Stop(steps=1), lowest_first), Forgetting(), Log()).run()
    assert forgotten == [2, 1, 0], "first what still runs, then what had arrived"


def test_no_step_is_named_but_by_the_jobs_that_it_used() -> None:
    log, _, _ = run(overselect(1, 2), world(faults=[(0, 1, 2)]), Stop(steps=2))
    found = list(zip(log.jobs, log.used_by, strict=True))
    assert [(status, step) for (_, status, _, _), step in found] == [
        ("lost", -1),
        ("aggregated", 0),
        ("late", -1),
        ("aggregated", 1),
        ("late", -1),
        ("late", -1),
    ]


@pytest.mark.parametrize(
    ("late", "status"), [("drop", "late"), ("history", "remembered"), ("keep", "aggregated")]
)
def test_updates_for_which_a_smaller_step_has_no_room_go_the_way_of_those_under_way(
    late: Late, status: str
) -> None:
    """A run that is forked while 0 and 1 wait for a third; 0 arrives again at 6, and one update makes a step now."""
    log, before = Log(), plan(fedbuff(3, 3), Stop(time_us=round(5.5 * US)), lowest_first)
    assert EventLoop(world(), before, NullTrainer(), log, log.run_state).run() == "time"
    after = replace(before, pacing=Pacing(3, 1, late=late), stop=TWO_STEPS)
    EventLoop(world(), after, NullTrainer(), log, log.run_state).run()
    assert log.jobs[0] == (3, "aggregated", 0, 0)
    assert (5, status, 1, 0) in log.jobs
    assert log.columns[0]["late"] == (0 if late == "keep" else 4)


def test_a_minimum_of_kept_updates_moves_the_deadline() -> None:
    log, _, _ = run(replace(periodic(3, 4 * US), minimum=2), world(), Stop(steps=1))
    assert log.steps == [(8, "deadline", 2)]


def test_a_loss_is_noticed_later() -> None:
    place = world(faults=[(2, 1, 2)])
    log, _, event_loop = run(sync(3), place, Stop(steps=1), dropout=Dropout(notice_us=10 * US))
    assert log.steps == [(11, "drained", 2)]
    assert log.jobs == [(1, "lost", 2, 0), (3, "aggregated", 0, 0), (5, "aggregated", 1, 0)]
    assert event_loop.run_state.lost_total == 1


def test_a_loss_that_nobody_noticed_is_a_loss_all_the_same() -> None:
    place = world(faults=[(2, 1, 2)])
    log, _, _ = run(deadline(3, 6 * US), place, Stop(steps=1), dropout=Dropout(notice_us=10 * US))
    assert log.steps == [(6, "deadline", 2)]
    assert log.jobs[-1] == (1, "lost", 2, 0)


def test_lost_work_is_tried_again() -> None:
    place = world(faults=[(1, 1, 2)])
    log, _, _ = run(sync(3), place, Stop(steps=1), dropout=Dropout(notice_us=US, retries=1))
    assert log.jobs == [
        (1, "lost", 1, 0),
        (3, "aggregated", 0, 0),
        (7, "aggregated", 1, 0),
        (9, "aggregated", 2, 0),
    ]
    assert log.attempts == [0, 0, 1, 0]


@pytest.mark.parametrize("name", ["fastest_first", "uniform"])  # of which the second proposes clients
def test_lost_work_of_a_client_alone_is_tried_again(name: str) -> None:
    place, selector = world(faults=[(0, 1, 2)], online={1: [], 2: []}), build("selector", name, {})
    again = Dropout(notice_us=US, retries=1)
    log, _, _ = run(sync(1), place, Stop(steps=2), dropout=again, selector=selector)
    assert log.jobs == [(1, "lost", 0, 0), (5, "aggregated", 0, 0), (8, "aggregated", 0, 1)]
    assert log.attempts == [0, 1, 0]


def test_a_client_that_is_gone_is_not_tried_again() -> None:
    place = world(online={1: [(0, 1)]})
    log, _, _ = run(sync(3), place, Stop(steps=1), dropout=Dropout(retries=3))
    assert log.steps == [(9, "drained", 2)]


def test_another_client_replaces_one_that_is_lost() -> None:
    place = world(faults=[(0, 2, 2.5)])
    log, _, _ = run(sync(2), place, Stop(steps=1), dropout=Dropout(replace=True))
    assert log.steps == [(11, "full", 2)]
    assert log.jobs == [(2, "lost", 0, 0), (5, "aggregated", 1, 0), (11, "aggregated", 2, 0)]


def test_a_client_in_a_fault_is_not_asked_twice_at_one_instant() -> None:
    place = world(faults=[(0, 2, 4)], online={1: [], 2: []})
    log, _, _ = run(fedbuff(1, 1), place, Stop(steps=1))
    assert log.jobs == [(2, "lost", 0, 0), (3, "lost", 0, 0), (7, "aggregated", 0, 0)]


def test_another_client_replaces_the_only_one_that_works() -> None:
    log, _, _ = run(sync(1), world(faults=[(0, 2, 2.5)]), Stop(steps=1), dropout=Dropout(replace=True))
    assert log.steps == [(7, "full", 1)]
    assert log.jobs == [(2, "lost", 0, 0), (7, "aggregated", 1, 0)]


def test_nobody_to_replace_the_lost_ends_the_round() -> None:
    place = world(online={0: [(0, 2)], 2: []})
    log, _, _ = run(sync(2), place, Stop(steps=1), dropout=Dropout(replace=True))
    assert log.steps == [(5, "drained", 1)]
    assert log.columns[0]["waits"] == 0, "the clock did not jump: the server stepped at once"


def test_less_work_may_arrive_in_time() -> None:
    log, _, _ = run(deadline(3, 5 * US), world(), Stop(steps=1), dropout=Dropout(partial=True))
    assert log.steps == [(5, "full", 3)]
    assert log.shares == [1.0, 1 / 3, 1.0]
    assert [job[:3] for job in log.jobs] == [
        (3, "aggregated", 0),
        (4.333334, "aggregated", 2),
        (5, "aggregated", 1),
    ]


def test_of_more_epochs_than_usual_as_many_are_left_out_as_lets_a_job_arrive_in_time() -> None:
    """Six epochs of a third of a second each would arrive at 4 s, five do at 3.67 s."""
    costs = replace(slow((1.0, 1.0, 1.0)), completeness=Completeness("epochs", low=6, high=6))
    pacing, partial = deadline(1, round(3.7 * US)), Dropout(partial=True)
    log, _, _ = run(pacing, world(), Stop(steps=1), costs=costs, dropout=partial)
    assert log.steps == [(3.666667, "full", 1)]
    assert log.shares == pytest.approx([5 / 3])


def test_virtual_time_asks_for_evaluations_and_bytes_end_a_run() -> None:
    evaluate = Evaluate(every_steps=0, every_us=7 * US)
    log, ended_by, _ = run(sync(3), world(), Stop(steps=3), evaluate=evaluate)
    assert (log.evaluations, ended_by) == ([0, 1, 2, 3], "steps")
    log, ended_by, _ = run(sync(3), world(), Stop(steps=9, moved_bytes=700))
    assert (len(log.steps), ended_by) == (2, "bytes")


def test_an_evaluation_that_is_due_before_the_time_limit_is_made() -> None:
    """Step 1 is at 9 s and the next one would be at 18."""
    log, _, _ = run(
        sync(3), world(), Stop(time_us=16 * US), evaluate=Evaluate(every_steps=0, every_us=7 * US)
    )
    assert list(zip(log.evaluations, log.evaluated_s, strict=True)) == [(0, 0), (1, 14)]


def test_a_run_can_be_saved_when_the_first_work_is_handed_out_and_after_each_instant() -> None:
    log = Log()
    state = log.run_state
    event_loop = EventLoop(
        world(), plan(sync(3), Stop(steps=1), lowest_first), NullTrainer(), log, log.run_state
    )
    seen = [(state.now_us / US, state.in_flight) for _ in event_loop.instants()]
    assert seen == [(0, 3), (3, 2), (5, 1), (9, 0)]


def test_a_caller_ends_the_run_between_two_instants() -> None:
    log = Log()
    event_loop = EventLoop(
        world(), plan(sync(3), Stop(steps=9), lowest_first), NullTrainer(), log, log.run_state
    )
    for _ in event_loop.instants():
        if log.run_state.step == 2:
            event_loop.ended_by = "wall"
    assert (event_loop.ended_by, log.run_state.step) == ("wall", 2)
    assert log.evaluations[-1] == 2, "the final model is evaluated"


def test_many_jobs_that_end_without_a_step_are_written_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Crowded(Log):
        def crowded(self) -> None:
            sizes.append(len(self.run_state.job_table.ended))
            super().crowded()

    def all_lost() -> list[int]:
        sizes.clear()
        log, place = Crowded(), world(faults=[(c, 1, 2) for c in range(3)])
        EventLoop(place, plan(sync(3), Stop(steps=1), lowest_first), NullTrainer(), log, log.run_state).run()
        return list(sizes)

    sizes: list[int] = []
    assert all_lost() == [3], "with their step"
    monkeypatch.setattr("fedsim.engine.event_loop._CROWD", 2)
    assert all_lost() == [2, 1]


def slow(seconds: tuple[float, float, float]) -> Costs:
    costs = plan(sync(3), TWO_STEPS, lowest_first).costs
    return replace(costs, work=replace(costs.work, slowness=seconds))


@pytest.mark.parametrize(
    ("changes", "limit_s", "end_s"),  # in the plain world the job of client 2 takes nine seconds
    [
        ({"costs": slow((2.0, 1 / 7, 1.5))}, 20, 4.5),
        ({"costs": replace(slow((1.0, 1.0, 1.0)), chance=Chance(1.0, within="download"))}, 20, None),
        ({"costs": replace(slow((1.0, 0.1, 1.0)), jitter=Jitter("lognormal", {"compute": 0.5}))}, 20, None),
        ({"dropout": Dropout(partial=True)}, 5, 1 + 7 / 3 + 1),
    ],
    ids=["slowness", "chance", "jitter", "partial"],
)
def test_a_job_alone_takes_as_long_as_one_among_others(
    changes: dict[str, Any], limit_s: int, end_s: float | None
) -> None:
    def of_2(k: int, **how: Any) -> Flight:
        pacing = deadline(k, limit_s * US)
        log, _, _ = run(pacing, world(), Stop(steps=1), lambda v, k, _: v.candidates[-k:], **how)
        return next(flight for flight in log.flights if flight.job.client == 2)

    alone, among = of_2(1, **changes), of_2(3, **changes)
    assert replace(among, job=alone.job) == alone
    assert (among.job.share, among.job.nth) == (alone.job.share, alone.job.nth)
    assert alone.end_us < of_2(1).end_us == min(9, limit_s) * US
    assert end_s is None or alone.end_us == pytest.approx(end_s * US, abs=1)


def test_a_job_alone_that_runs_into_the_end_of_the_world_is_lost_there() -> None:
    log, ended_by, _ = run(sync(1), world(horizon_s=4), Stop(steps=9))
    assert log.jobs == [(3, "aggregated", 0, 0), (4, "lost", 0, 1)]
    assert ended_by == "world"


def test_where_nothing_ever_changes_a_client_that_was_lost_is_asked_again_a_second_later() -> None:
    place = world(faults=[(0, 2, 2.5)], after_end="repeat")
    log, _, _ = run(fedbuff(1, 1), place, Stop(steps=1), lambda v, k, _: v.candidates[v.candidates == 0])
    assert log.jobs == [(2, "lost", 0, 0), (6, "aggregated", 0, 0)]


def test_whoever_comes_within_the_second_after_a_loss_is_asked_as_it_comes() -> None:
    place = world(faults=[(0, 2, 4)], online={1: [(2.5, 1000)], 2: []})
    log, _, _ = run(fedbuff(1, 1), place, Stop(steps=1), lambda v, k, _: v.candidates[-k:])
    assert log.jobs == [(2, "lost", 0, 0), (7.5, "aggregated", 1, 0)]


@pytest.mark.parametrize(
    ("pacing", "faults", "stop", "clients"),
    [
        (deadline(3, 6 * US), [(0, 1, 2)], Stop(steps=1), [1]),
        (deadline(3, 5 * US), [], Stop(steps=1), [0, 1]),  # 1 arrives at that very instant
        (deadline(1, 3 * US), [], Stop(steps=1), [0]),
        (deadline(1, 3 * US - 1), [], Stop(steps=2), []),
        (overselect(1, 2), [], Stop(steps=1), [0]),
        (sync(3), [], Stop(time_us=5 * US), [0, 1]),
        (fedasync(2), [], Stop(time_us=6 * US), [0, 1, 0]),  # 0 has its second job alone, from 3 to 6
        (fedasync(2), [], Stop(time_us=6 * US - 1), [0, 1]),
        (fedasync(2), [(0, 4, 4.5)], Stop(steps=2), [0, 1, 2]),
    ],
)
def test_jobs_whose_update_cannot_be_used_are_never_submitted(
    pacing: Pacing, faults: list[tuple[int, float, float]], stop: Stop, clients: list[int]
) -> None:
    submitted: list[int] = []

    class Listening(NullTrainer):
        def submit(self, cohort: Cohort) -> None:
            submitted.extend(cohort.clients.tolist())

    EventLoop(world(faults=faults), plan(pacing, stop, lowest_first), Listening(), Log()).run()
    assert submitted == clients


def test_a_selector_that_breaks_its_contract_is_named() -> None:
    def twice(view: View, k: int, rng: np.random.Generator) -> Clients:
        return np.zeros(k, dtype=np.int64)

    with pytest.raises(RunError, match="must return at most 3 distinct candidates"):
        run(sync(3), world(), select=twice)


def test_a_selector_cannot_change_what_it_sees() -> None:
    def greedy(view: View, k: int, rng: np.random.Generator) -> Clients:
        view.received[:] = 0
        return view.candidates[:k]

    with pytest.raises(ValueError, match="read-only"):
        run(sync(3), world(), select=greedy)


def test_the_future_of_the_world_never_changes_the_past() -> None:
    cut = world(online={c: [(0, 12)] for c in range(3)})
    whole, short = run(sync(2), world(), Stop(steps=3))[0], run(sync(2), cut, Stop(steps=3))[0]
    assert [j for j in short.jobs if j[0] < 12] == [j for j in whole.jobs if j[0] < 12]


def test_states_in_the_job_table_are_told_from_each_other_and_from_those_of_the_table() -> None:
    states = {job_table.RUNNING, job_table.LANDED, job_table.FREE}
    assert len(states) == 3
    assert not states & set(range(len(STATUSES)))

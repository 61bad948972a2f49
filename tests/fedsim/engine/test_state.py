"""Where a run stands, as plain data: deadlines and wakings that count, and what a checkpoint keeps."""

from __future__ import annotations

import heapq
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest

from fedsim.common.units import US
from fedsim.engine.pacing import sync
from fedsim.engine.remembered import Memory
from fedsim.engine.state import Dropout, Evaluate, Kind, RunState, Stop
from fedsim.training.job import Cohort, Job
from timelines import plan_of


def test_equal_times_are_ordered_by_meaning_then_by_client() -> None:
    events = [(5, Kind.WAKE, -1, 0), (5, Kind.DEADLINE, -1, 1), (5, Kind.LOST, 0, 4), (5, Kind.ARRIVE, 3, 1)]
    events += [(5, Kind.ARRIVE, 2, 9), (4, Kind.WAKE, -1, 0)]
    heapq.heapify(events)
    found = [heapq.heappop(events)[1:3] for _ in range(6)]
    kinds = [Kind.WAKE, Kind.ARRIVE, Kind.ARRIVE, Kind.LOST, Kind.DEADLINE, Kind.WAKE]
    assert [kind for kind, _ in found] == kinds
    assert [client for _, client in found[1:3]] == [2, 3]


def test_the_deadline_that_was_set_last_counts_while_it_is_armed() -> None:
    run_state = RunState(2, now_us=10)
    run_state.arm(5)
    (first,) = run_state.heap
    assert first == (15, Kind.DEADLINE, -1, 1)
    assert run_state.deadline_us == 15
    assert run_state.holds(first)
    run_state.now_us = 12
    run_state.arm(9)
    second = next(event for event in run_state.heap if event != first)
    assert second == (21, Kind.DEADLINE, -1, 2)
    assert (run_state.deadline_us, run_state.deadlines) == (21, 2)
    assert not run_state.holds(first)
    assert run_state.holds(second)
    run_state.armed = False
    assert not run_state.holds(second)


def test_a_waking_counts_at_the_time_for_which_it_is_set_and_arrivals_always() -> None:
    run_state = RunState(2, wake_us=7 * US)
    assert [run_state.holds((t * US, Kind.WAKE, -1, 0)) for t in (6, 7, 8)] == [False, True, False]
    assert run_state.holds((3, Kind.ARRIVE, 1, 0))
    assert run_state.holds((3, Kind.LOST, 1, 0))


def test_jobs_that_are_too_late_already_run_but_do_not_work() -> None:
    assert RunState(9, in_flight=5, overdue_running=2).working == 3


def test_a_run_begins_with_nothing() -> None:
    run_state = RunState(3)
    tables = ("job_table", "client_records", "remembered")
    values = {f.name: getattr(run_state, f.name) for f in fields(run_state) if f.name not in tables}
    unset = {"deadline_us": -1, "wake_us": -1, "evaluated": -1, "lost_us": -1, "n_clients": 3}
    assert values.pop("best") != values.get("best"), "not a number"
    empty: dict[str, Any] = {"heap": [], "buffer": [], "overdue": [], "lost_now": [], "selector_state": {}}
    false = dict.fromkeys(("begun", "armed", "handed", "reached", "stepped"), False)
    zero = {name: 0 for name in values if name not in {*unset, *empty, *false}}
    assert values == unset | empty | false | zero
    assert len(run_state.client_records.dispatched) == 3
    assert run_state.remembered.step.tolist() == [-1, -1, -1]


def test_what_is_restored_is_what_was_saved() -> None:
    run_state = RunState(
        3, begun=True, now_us=11, step=4, best=0.5, unimproved=2, buffer=[3], lost_now=[1], lost_us=11
    )
    run_state.arm(6)
    heapq.heappush(run_state.heap, (12, int(Kind.ARRIVE), 2, 0))
    run_state.client_records.dispatch(1, step=4)
    run_state.remembered.keep(Memory(2), Cohort.of([Job(0, 1, 0, 3)]), 1, 3, 11)
    run_state.selector_state = {"turn": np.array([1, 2])}
    again = RunState.restored(run_state.state())
    for f in fields(RunState):
        if f.name not in ("job_table", "client_records", "remembered"):
            np.testing.assert_equal(getattr(again, f.name), getattr(run_state, f.name))
    assert [heapq.heappop(again.heap) for _ in range(2)] == [(12, 0, 2, 0), (17, 2, -1, 1)]
    for name, column in run_state.client_records.columns().items():
        np.testing.assert_array_equal(getattr(again.client_records, name), column)
    np.testing.assert_array_equal(again.remembered.step, [-1, 3, -1])
    np.testing.assert_array_equal(again.remembered.time_us, [-1, 11, -1])
    again.client_records.lose(1)
    assert run_state.client_records.lost[1] == 0, "what was saved stays as it was"
    with pytest.raises(KeyError):
        RunState.restored({name: value for name, value in run_state.state().items() if name != "step"})


def test_what_is_planned_cannot_be_changed_on_the_way() -> None:
    plan = plan_of(sync(1), 1, Stop(steps=1))
    costs = plan.costs
    selection = (plan.selector, plan.facts)
    for part in (plan, plan.pacing, plan.stop, plan.evaluate, plan.dropout, *selection, costs, costs.work):
        with pytest.raises(FrozenInstanceError):
            setattr(part, fields(part)[0].name, None)
    for part in (costs.jitter, costs.completeness, costs.chance):
        with pytest.raises(FrozenInstanceError):
            setattr(part, fields(part)[0].name, None)


def test_what_is_documented_as_the_default_is_it() -> None:
    assert Evaluate() == Evaluate(every_steps=10, every_us=0, split="test", personal=False, clients=None)
    assert Dropout() == Dropout(notice_us=0, retries=0, replace=False, partial=False)
    stop = Stop()
    assert (stop.rising, stop.least) == (True, 0.0)
    assert {getattr(stop, f.name) for f in fields(stop) if f.name not in ("rising", "least")} == {None}

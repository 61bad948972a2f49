"""Pacings that must agree, and what holds of every pacing in every world."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.common.units import US
from fedsim.engine.costs import Chance, Completeness, Jitter
from fedsim.engine.pacing import Pacing, deadline, fedasync, fedbuff, overselect, periodic, sync
from fedsim.engine.selector import Clients, View
from fedsim.engine.state import Dropout, Plan, Stop
from fedsim.worlds.trace import Trace
from fedsim.worlds.world import LEAVES
from timelines import Book, Entry, Sessions, assert_sound, costs_of, plan_of, run, trace_of

FAST = settings(max_examples=30, deadline=None)
HORIZON_S = 60


def paces(n: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.integers(1, 12).map(float), min_size=n, max_size=n)


@st.composite
def sessions(draw: st.DrawFn, most: int = 4) -> Sessions:
    cuts = sorted(draw(st.sets(st.integers(0, HORIZON_S), max_size=2 * most)))
    return list(zip(cuts[::2], cuts[1::2], strict=False))


@st.composite
def traces(draw: st.DrawFn, after_end: Any = None) -> Trace:
    """One to six clients that come, go and fail."""
    n = draw(st.integers(1, 6))
    mostly = draw(st.booleans())
    online = {c: [(0, HORIZON_S)] if mostly and c else draw(sessions()) for c in range(n)}
    faults = {c: draw(sessions(2)) for c in range(n)} if draw(st.booleans()) else {}
    ends = after_end or draw(st.sampled_from(["repeat", "stop"]))
    return trace_of(draw(paces(n)), HORIZON_S, online, faults, ends)


@st.composite
def pacings(draw: st.DrawFn, most: int) -> Pacing:
    concurrency = draw(st.integers(1, most))
    buffer, t = draw(st.integers(1, concurrency)), draw(st.integers(1, 20)) * US
    kind = draw(st.sampled_from(["round", "timed", "kept", "buffered", "periodic"]))
    if kind == "round":
        return replace(
            overselect(buffer, concurrency - buffer), late=draw(st.sampled_from(["drop", "history"]))
        )
    least, bound = draw(st.integers(0, buffer)), draw(st.none() | st.integers(0, 3))
    if kind == "timed":
        late = draw(st.sampled_from(["drop", "history", "keep"]))
        return Pacing(concurrency, buffer, t, late=late, minimum=least)
    if kind == "kept":
        return Pacing(concurrency, buffer, late="keep", max_staleness=bound)
    if kind == "periodic":
        return replace(periodic(concurrency, t), minimum=least, max_staleness=bound)
    plain = replace(fedbuff(concurrency, buffer), max_staleness=bound)
    return replace(plain, deadline_us=t, minimum=least) if draw(st.booleans()) else plain


dropouts = st.builds(
    Dropout, st.integers(0, 5).map(lambda s: s * US), st.integers(0, 2), st.booleans(), st.booleans()
)
chances = st.builds(
    Chance,
    st.sampled_from([0.0, 0.0, 0.3]),
    st.just("same"),
    st.sampled_from(["any", "download", "compute", "upload"]),
)


@st.composite
def plans(draw: st.DrawFn, n: int, **fixed: Any) -> Plan:
    jitter = draw(st.sampled_from([Jitter(), Jitter("lognormal", {"compute": 0.5, "uplink": 0.3})]))
    changes = {"costs": costs_of(n, jitter=jitter, chance=draw(chances)), "dropout": draw(dropouts)} | fixed
    stop = Stop(steps=12, time_us=4 * HORIZON_S * US)
    return plan_of(draw(pacings(n)), n, stop, seed=draw(st.integers(0, 5)), **changes)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_run_is_sound_and_ends(data: st.DataObject) -> None:
    trace = data.draw(traces())
    plan = data.draw(plans(trace.clients))
    book, ended_by, event_loop = run(trace, plan, data.draw(st.sampled_from(LEAVES[:3:2] + LEAVES[3:])))
    assert ended_by in ("steps", "time", "world")
    assert_sound(book, event_loop)


@given(st.data())
@FAST
def test_every_run_is_sound_where_clients_pause(data: st.DataObject) -> None:
    trace = data.draw(traces("stop"))
    book, _, event_loop = run(trace, data.draw(plans(trace.clients)), "pause_resume")
    assert_sound(book, event_loop)


@given(st.data())
@FAST
def test_the_same_run_twice_is_the_same(data: st.DataObject) -> None:
    trace = data.draw(traces())
    plan = data.draw(plans(trace.clients))
    first, second = run(trace, plan)[0], run(trace, plan)[0]
    assert first.jobs == second.jobs
    assert first.rows() == second.rows()


def until(book: Book, t_us: int) -> tuple[list[Any], list[Any]]:
    """What had happened before `t_us`: steps, and jobs that had ended, with what became of them before it."""
    times = [int(row["time_us"]) for row in book.steps]
    early = [row[:6] for row in book.rows() if row[0] < t_us]

    def said(entry: Entry) -> tuple[Any, ...]:
        f = entry.flight
        settled = {
            "aggregated": entry.step >= 0 and times[entry.step] < t_us,
            "remembered": any(
                f.end_us < time < t_us for time in times
            ),  # by the next step, whose number is not told
        }
        fate = (entry.status, entry.step) if settled.get(entry.status) else None
        return f.job, f.attempt, f.dispatch_us, f.download_us, f.compute_us, f.end_us, f.ok, fate

    ended = [e for e in book.jobs if e.flight.end_us < t_us]
    return early, sorted((said(e) for e in ended), key=lambda row: row[0].id)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_the_future_never_changes_the_past(data: st.DataObject) -> None:
    """Where nobody is online any more from some instant on, all is as it was until then, whatever the pacing."""
    whole = data.draw(traces("stop"))
    cut_us = data.draw(st.integers(1, HORIZON_S)) * US + data.draw(st.sampled_from([0, 1, US // 2]))
    plan = data.draw(plans(whole.clients))
    leave = data.draw(st.sampled_from(LEAVES))
    if leave == "pause_resume":  # standing still is part of how long a job takes
        plan = replace(plan, dropout=replace(plan.dropout, partial=False), costs=costs_of(whole.clients))
    short = Trace.of(
        *without_after(whole, cut_us), clients=whole.clients, horizon_us=whole.horizon_us, after_end="stop"
    )
    assert until(run(short, plan, leave)[0], cut_us) == until(run(whole, plan, leave)[0], cut_us)


def without_after(trace: Trace, cut_us: int) -> list[Any]:
    table = trace.table.to_pandas()
    online = table["kind"] == "online"
    table.loc[online, "end_us"] = table.loc[online, "end_us"].clip(upper=cut_us)
    table = table[table["start_us"] < table["end_us"]]
    return [table[name].tolist() for name in ("client", "start_us", "end_us", "kind", "value")]


# Pacings that must agree


@given(st.integers(1, 6), st.integers(0, 4), st.integers(1, 9), st.integers(0, 99))
@FAST
def test_a_buffer_of_all_that_work_is_synchronous_if_all_are_equally_fast(
    m: int, others: int, pace: int, seed: int
) -> None:
    trace = trace_of([float(pace)] * (m + others))
    buffered, synchronous = (
        run(trace, plan_of(pacing, m + others, Stop(steps=5), seed=seed))[0]
        for pacing in (fedbuff(m, m), sync(m))
    )
    assert [e.key for e in buffered.used()] == [e.key for e in synchronous.jobs]
    assert [row[:6] for row in buffered.rows()] == [row[:6] for row in synchronous.rows()]


def same(a: Pacing, b: Pacing) -> Any:
    """A test that two pacings of at most three clients do the same in every world and with every way of loss."""

    @given(st.data())
    @settings(max_examples=40, deadline=None)
    def check(data: st.DataObject) -> None:
        trace = data.draw(traces())
        plan = data.draw(plans(trace.clients))
        first, second = (run(trace, replace(plan, pacing=pacing))[0] for pacing in (a, b))
        assert first.jobs == second.jobs
        assert first.rows() == second.rows()

    return check


test_overselecting_nobody_is_synchronous = same(overselect(3, 0), sync(3))
test_a_deadline_that_is_never_met_is_synchronous = same(sync(3), deadline(3, 1000 * HORIZON_S * US))
test_nobody_is_late_where_all_are_waited_for = same(sync(3), replace(sync(3), late="history"))
test_nobody_is_kept_where_all_are_waited_for = same(sync(3), replace(sync(3), late="keep"))
test_a_buffer_of_one_is_fully_asynchronous = same(fedbuff(3, 1), fedasync(3))
test_a_bound_that_is_never_reached_bounds_nothing = same(
    fedbuff(3, 2), replace(fedbuff(3, 2), max_staleness=99)
)


# Queueing theory


def durations_us(book: Book) -> Any:
    return np.array([e.flight.end_us - e.flight.dispatch_us for e in book.jobs])


@pytest.mark.parametrize(("concurrency", "buffer"), [(2, 1), (5, 1), (5, 3), (8, 4), (6, 6)])
def test_mean_staleness_is_concurrency_less_one_by_buffer(concurrency: int, buffer: int) -> None:
    """A place is handed on at each of its arrivals, so a job sees the steps of its duration and no others.

    Let arrival n (from 0) take part in step floor(n / K). A job that follows arrival a of its place and is arrival b
    is floor(b / K) - floor((a + 1) / K) steps old. Summed along the places this telescopes: in S steps to M S, less one
    for each arrival that completes a step, of which there are S. By S K arrivals that is (M - 1) / K, whatever the
    speeds, but for what is under way at the end.
    """
    rng, steps = np.random.default_rng(0), 400 // buffer
    n = 2 * concurrency
    costs = costs_of(n, jitter=Jitter("lognormal", dict.fromkeys(("downlink", "compute", "uplink"), 1.0)))
    plan = plan_of(fedbuff(concurrency, buffer), n, Stop(steps=steps), costs=costs)
    book, _, _ = run(trace_of(rng.uniform(1, 20, n).tolist(), 1e7), plan)
    staleness = [e.step - e.flight.job.version for e in book.used()]
    assert len(staleness) == steps * buffer
    assert np.mean(staleness) == pytest.approx((concurrency - 1) / buffer, rel=0.1)


def test_what_is_in_flight_is_throughput_by_duration() -> None:
    """Little's law, and renewal theory: each of M busy clients reports at the inverse of its mean duration."""
    seconds, spread, limit_s = [2.0, 5.0, 9.0, 20.0], 0.4, 8_000
    costs = costs_of(4, jitter=Jitter("lognormal", {"compute": spread}))
    plan = plan_of(fedasync(4), 4, Stop(time_us=limit_s * US), costs=costs)
    book, ended_by, _ = run(trace_of(seconds), plan)
    assert ended_by == "time"
    assert durations_us(book).sum() == 4 * limit_s * US, "each place is busy all the time"
    factor, second = np.exp(spread**2 / 2), np.exp(2 * spread**2)
    for client, pace in enumerate(seconds):
        mean_s = 2 + pace * factor
        variance = pace**2 * (second - factor**2)
        arrived = sum(e.flight.job.client == client for e in book.used())
        deviation = np.sqrt(limit_s * variance / mean_s**3)  # central limit theorem of renewal processes
        assert abs(arrived - limit_s / mean_s) < 5 * deviation + 1


def test_a_client_that_is_twice_as_fast_has_its_say_twice_as_often() -> None:
    book, _, _ = run(trace_of([2.0, 6.0]), plan_of(fedasync(2), 2, Stop(steps=300)))
    counts = np.bincount([e.flight.job.client for e in book.used()])
    assert counts.tolist() == [200, 100]


# What may stand still, and must not for ever


def test_a_step_without_a_bound_on_its_updates_is_refused() -> None:
    with pytest.raises(ValueError, match="any number of updates"):
        Pacing(2, None, US, refill="arrival", late="keep")


def lowest(view: View, k: int, rng: np.random.Generator) -> Clients:
    return view.candidates[:k]


@pytest.mark.parametrize("pacing", [periodic(2, 2 * US), replace(fedbuff(2, 2), deadline_us=2 * US)])
def test_a_deadline_comes_again_where_all_work_on(pacing: Pacing) -> None:
    plan = plan_of(pacing, 2, Stop(steps=5), lowest)
    book, ended_by, _ = run(trace_of([5.0, 9.0]), plan)
    assert [row["time_us"] // US for row in book.steps] == [2, 4, 6, 8, 10]
    assert [row["updates"] for row in book.steps] == [0, 0, 0, 1, 0]
    assert ended_by == "steps"


def test_kept_updates_wait_for_the_minimum_until_somebody_comes() -> None:
    pacing = replace(periodic(2, 4 * US), minimum=2)
    trace = trace_of([1.0, 1.0], 1000, {0: [(0, 1000)], 1: [(30, 1000)]})
    book, _, _ = run(trace, plan_of(pacing, 2, Stop(steps=1), lowest))
    assert [(row["time_us"] // US, row["updates"]) for row in book.steps] == [(34, 2)]


@pytest.mark.parametrize("pacing", [sync(2), fedbuff(2, 2)])
def test_nobody_is_handed_work_until_enough_can_be_chosen(pacing: Pacing) -> None:
    pacing = replace(pacing, least_candidates=3)
    trace = trace_of([1.0] * 3, 1000, {0: [(0, 1000)], 1: [(10, 1000)], 2: [(20, 40), (60, 1000)]})
    book, _, _ = run(trace, plan_of(pacing, 3, Stop(steps=2), lowest))
    assert [(row["time_us"] // US, row["updates"]) for row in book.steps] == [(23, 2), (26, 2)]
    late = trace_of([1.0] * 3, 1000, {0: [(0, 1000)], 1: [(10, 1000)], 2: [(20, 23), (60, 1000)]})
    book, _, _ = run(late, plan_of(pacing, 3, Stop(steps=2), lowest))
    assert [row["time_us"] // US for row in book.steps] == [23, 63]
    never = trace_of([1.0] * 3, 1000, {0: [(0, 1000)], 1: [(10, 1000)]})
    book, ended_by, _ = run(never, plan_of(pacing, 3, Stop(steps=2), lowest))
    assert (ended_by, book.steps) == ("world", [])


def test_a_minimum_that_nobody_can_meet_ends_the_run() -> None:
    pacing = replace(periodic(2, 4 * US), minimum=2)
    book, ended_by, _ = run(
        trace_of([1.0, 1.0], 1000, {0: [(0, 1000)]}), plan_of(pacing, 2, Stop(steps=1), lowest)
    )
    assert (ended_by, book.steps) == ("world", [])
    assert [e.status for e in book.jobs] == ["unfinished"]


def test_a_buffer_that_nobody_can_fill_makes_a_step() -> None:
    """The client that is left had its job from the round before: nobody was handed anything since."""
    pacing = Pacing(3, 2, late="keep")
    trace = trace_of([1.0, 3.0, 7.0], 1000, {0: [(0, 5)], 1: [(0, 5)], 2: [(0, 1000)]})
    book, _, _ = run(trace, plan_of(pacing, 3, Stop(steps=3), lowest), "end_instant")
    assert [(row["time_us"] // US, row["cause"]) for row in book.steps] == [
        (5, "full"),
        (9, "drained"),
        (18, "drained"),
    ]


def test_whoever_comes_back_is_handed_work_before_a_step_is_made_of_less() -> None:
    """As above, but the others are there again when the last job arrives: the step waits for one of them."""
    pacing = Pacing(3, 2, late="keep")
    trace = trace_of([1.0, 3.0, 7.0], 1000, {0: [(0, 5), (8, 1000)], 1: [(0, 5), (8, 1000)], 2: [(0, 1000)]})
    book, _, _ = run(trace, plan_of(pacing, 3, Stop(steps=2), lowest), "end_instant")
    assert [(row["time_us"] // US, row["cause"]) for row in book.steps] == [(5, "full"), (12, "full")]


@pytest.mark.parametrize(
    "how", [Completeness("epochs", chance=0.7, low=1, high=6), Completeness("PDU", chance=1.0)]
)
def test_as_few_epochs_are_left_out_as_lets_a_job_arrive_in_time(how: Completeness) -> None:
    """Three epochs are usual; of eight seconds two are for transfers, so 3 * 6 / pace epochs fit."""
    paces = np.geomspace(1.1, 20, 60)
    costs = costs_of(60, completeness=how)
    plan = plan_of(deadline(60, 8 * US), 60, Stop(steps=1), costs=costs, dropout=Dropout(partial=True))
    book, _, _ = run(trace_of(paces.tolist()), plan)
    found = {e.flight.job.client: 3 * e.flight.job.share for e in book.jobs}
    given = 3 * costs.shares(np.arange(60), np.zeros(60, dtype=np.int64))
    for client, (epochs, fit) in enumerate(zip(given.tolist(), (18 / paces).tolist(), strict=True)):
        fewer = min(math.ceil(round(epochs, 9)) - 1, math.floor(fit))
        assert found[client] == pytest.approx(epochs if epochs <= fit else fewer or epochs)


def test_a_shorter_job_is_planned_without_knowing_who_will_leave() -> None:
    plan = plan_of(deadline(2, 5 * US), 2, Stop(steps=1), lowest, dropout=Dropout(partial=True))
    stays = run(trace_of([1.0, 7.0]), plan)[0]
    leaves = run(trace_of([1.0, 7.0], 1000, {0: [(0, 1000)], 1: [(0, 4.5)]}), plan)[0]
    assert [(e.flight.job.share, e.status) for e in stays.jobs] == [
        (1.0, "aggregated"),
        (1 / 3, "aggregated"),
    ]
    assert [e.flight for e in leaves.used()] == [e.flight for e in stays.used()]
